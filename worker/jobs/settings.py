"""Settings: read once from `OMNIVOICE_*` variables into a frozen object."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from worker.jobs.errors import SettingsError
from worker.jobs.ranges import numbers_of
from worker.jobs.sentinel import HOST, SENTINEL_FORM, SentinelUrl

ENVIRONMENT_PREFIX = "OMNIVOICE_"


def _url_with(*schemes: str) -> AfterValidator:
    def check(url: str) -> str:
        if not url.startswith(tuple(f"{scheme}://" for scheme in schemes)):
            raise ValueError("must start with " + " or ".join(f"{scheme}://" for scheme in schemes))
        if "http" in schemes and not HOST.fullmatch(urlsplit(url).netloc):
            raise ValueError("must name a host, with or without a port")
        return url.rstrip("/") if "http" in schemes else url

    return AfterValidator(check)


def _one_redis(url: str) -> str:
    if SentinelUrl.parse(url):
        return url
    parts = urlsplit(url)
    is_network = parts.scheme in ("redis", "rediss")
    if parts.scheme != "unix" and not (is_network and HOST.fullmatch(parts.netloc.rpartition("@")[2])):
        raise ValueError(
            f"must be redis://, rediss:// or unix:// and one server, or {SENTINEL_FORM}; Cluster is not supported, "
            "because Celery's messages cannot go through one, nor are other lists of servers"
        )
    if is_network and not re.fullmatch(r"/?\d*", parts.path):
        raise ValueError("must end with the number of a database, or nothing, behind the host")
    return url


RedisUrl = Annotated[str, AfterValidator(_one_redis)]
HttpUrl = Annotated[str, _url_with("http", "https")]
Port = Annotated[int, Field(ge=0, le=65_535)]
KeyPrefix = Annotated[
    str, Field(pattern=r"^[A-Za-z0-9_.{}-]{1,64}$", title="1 to 64 letters, digits, or any of . _ - { }")
]


class Settings(BaseModel):
    """Everything that can be chosen from outside, for the API and the worker alike.

    S3 credentials are not here: boto3 finds them (`AWS_ACCESS_KEY_ID`, a shared file, a role).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, hide_input_in_errors=True)

    # Model
    model: str = Field("k2-fsa/OmniVoice", min_length=1, description="checkpoint: a folder or a Hub id")
    synthesizer: Literal["engine", "tone"] = Field("engine", description="the model, or tones of the right length")
    tone_window_ms: int = Field(50, ge=0, le=600_000, description="time that `tone` takes a window")
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d{1,3})?)$", title="auto, cpu, cuda or cuda:N")
    dtype: Literal["auto", "float32", "bfloat16", "float16", "float64"] = "auto"
    mode: Literal["request", "step"] = Field("request", description="join batches between requests or between steps")

    deterministic: bool = Field(False, description="on CUDA: the same codes bit for bit in any batch, a little slower")
    fp8: bool = Field(False, description="on CUDA: products in e4m3, faster in full batches and less exact")
    memory_gib: float | None = Field(None, gt=0, le=10_000, description="on CUDA: no graph is captured beyond it")

    # Windows
    max_wait_ms: int = Field(50, ge=0, le=60_000, description="longest wait of a window for more jobs")
    max_batch_requests: int = Field(32, ge=1, le=1024)
    max_batch_tokens: int = Field(16_384, ge=256, le=10_000_000)

    # Redis and S3
    redis_url: RedisUrl = Field("redis://127.0.0.1:6379/0", repr=False, description="may hold a password")
    redis_prefix: KeyPrefix = Field("omnivoice", description="of every key in Redis")
    s3_endpoint: HttpUrl | None = Field(None, description="None: the one that boto3 knows")
    s3_public_endpoint: HttpUrl | None = Field(None, description="in presigned URLs; None: s3_endpoint")
    s3_bucket: str = Field(
        "omnivoice",
        pattern=r"^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$",
        title="3 to 63 lower-case letters, digits, dots or hyphens, the first and the last a letter or digit",
    )
    s3_prefix: str = Field(
        "",
        pattern=r"^([A-Za-z0-9_.=-]+/?)*$",
        max_length=256,
        title="names of letters, digits, or any of . _ = -, with single slashes between them",
        description="of every object's key",
    )
    s3_region: str = "us-east-1"
    s3_checksums: Literal["when_supported", "when_required"] = Field(
        "when_supported", description="when_required for stores that refuse boto3's CRC32 trailers"
    )
    audio_url_seconds: int = Field(3600, ge=1, le=604_800, description="how long a presigned URL works")

    # API
    api_host: str = "127.0.0.1"
    api_port: Port = 8080
    api_threads: int = Field(128, ge=1, le=1024)
    api_client_seconds: float = Field(
        30.0, ge=0.1, le=3600, description="a client that sends, or takes, nothing for so long is cut off"
    )
    api_workers: int = Field(1, ge=1, le=128)
    api_keys_file: str | None = None
    insecure: bool = Field(False, description="serve addresses other than loopback without keys")
    cors_origins: str = Field("", description="comma-separated allow-list; empty: none")
    max_request_bytes: int = Field(32 * 2**20, ge=1024, le=2**31)

    # Queue
    max_queue: int = Field(100_000, ge=1, description="most unfinished jobs; more are refused with 429")
    max_published: int = Field(
        4_000, ge=1, description="about so many messages of a queue; the ids of more wait in the ledger"
    )
    lease_seconds: float = Field(15.0, ge=0.05, le=3600, description="a worker silent for this long loses its jobs")
    max_attempts: int = Field(3, ge=1, le=100)
    drain_seconds: float = Field(30.0, ge=0, le=3600, description="time that a stopping worker has for what runs")
    batch_deadline_seconds: float = Field(
        300.0, gt=0, description="a worker none of whose steps ends for so long ends itself"
    )
    retention_hours: float = Field(72.0, gt=0, le=8760, description="how long an ended job and its objects are kept")
    # Metrics
    metrics_readers: str = Field(
        "", description="comma-separated names of the API keys that may read the API's metrics"
    )
    worker_metrics_host: str = Field("127.0.0.1", min_length=1)
    worker_metrics_port: Port | None = Field(None, description="where a worker serves its metrics; None: nowhere")
    log_level: Literal["debug", "info", "warning", "error"] = "info"

    @model_validator(mode="before")
    @classmethod
    def _case_of_log_level(cls, values: Any) -> Any:
        if isinstance(values, dict) and isinstance(values.get("log_level"), str):
            return {**values, "log_level": values["log_level"].lower()}
        return values

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Settings:
        """Read `OMNIVOICE_*` of `environ`; an empty value counts as absent. Raises `SettingsError`."""
        given = {
            name.removeprefix(ENVIRONMENT_PREFIX): value
            for name, value in environ.items()
            if name.startswith(ENVIRONMENT_PREFIX) and value != ""
        }
        for name in given:
            if name != name.upper() or name.lower() not in cls.model_fields:
                raise SettingsError(f"{ENVIRONMENT_PREFIX}{name} is not a setting{_nearest(name)}")
        try:
            return cls.model_validate({name.lower(): value for name, value in given.items()})
        except ValidationError as error:
            raise SettingsError(_first_problem(error)) from None

    def describe(self) -> dict[str, str]:
        """Variable name → value for the start-up log; a password inside a URL is replaced by `***`."""
        return {
            ENVIRONMENT_PREFIX + name.upper(): _without_secrets(str(value)) if value is not None else ""
            for name, value in self.model_dump().items()
        }


def _nearest(name: str) -> str:
    known = [field.upper() for field in Settings.model_fields]
    close = difflib.get_close_matches(name.upper(), known, n=1)
    return f"; did you mean {ENVIRONMENT_PREFIX}{close[0]}?" if close else ""


def _first_problem(error: ValidationError) -> str:
    """One line that names the variable and what is allowed, never the value: it may be a secret."""
    problem = error.errors(include_url=False, include_input=False)[0]
    field = str(problem["loc"][0])
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "string_pattern_mismatch":
        message = f"must be {Settings.model_fields[field].title}"
    elif problem["type"] == "bool_parsing":
        message = "must be 0 or 1"
    elif problem["type"] != "value_error" and (numbers := numbers_of(Settings.model_fields[field])):
        message = f"must be {numbers}"
    return f"{ENVIRONMENT_PREFIX}{field.upper()}: {message[0].lower()}{message[1:]}"


def _without_secrets(value: str) -> str:
    """`value` with the password of a URL, in its authority or its query, replaced by `***`."""
    value = re.sub(r"://([^:/@]*):.*@", r"://\1:***@", value)
    return re.sub(r"([?&][^=&]*password=)[^&]*", r"\1***", value, flags=re.IGNORECASE)
