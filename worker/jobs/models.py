"""What goes over the wire: the body that asks for a job, and the job as clients see it (pydantic)."""

from __future__ import annotations

import dataclasses
import difflib
import json
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    create_model,
    field_validator,
)

from omnivoice.audio.files import AUDIO_FORMATS
from omnivoice.parameters import BOUNDS, MAX_TEXT_CHARS, SAMPLE_RATE, SamplingParams
from omnivoice.request import SynthesisRequest, VoicePrompt
from omnivoice.text import is_speakable
from worker.jobs.errors import InvalidJob
from worker.jobs.ranges import numbers_of

SAMPLE_RATES: tuple[int, ...] = tuple(
    sorted({rate for audio_format in AUDIO_FORMATS.values() for rate in audio_format.sample_rates})
)
"""Of any format; not every format has each."""
MAX_METADATA_ITEMS = 16
MAX_METADATA_CHARS = 512
MAX_NAME_CHARS = 64
MAX_INSTRUCT_CHARS = 1_000
MAX_REF_TEXT_CHARS = 2_000
MAX_EXPIRES_SECONDS = 30 * 24 * 3600


class Status(StrEnum):
    """queued → running → one of the four final ones; a job that has ended never changes."""

    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"

    @property
    def is_final(self) -> bool:
        return self not in (Status.QUEUED, Status.RUNNING)


class Queue(StrEnum):
    """`interactive` is for someone who waits, `bulk` for everything else."""

    INTERACTIVE = "interactive"
    BULK = "bulk"


class _Strict(BaseModel):
    """No "32" for 32, no true for 1, no field that is not known, no NaN."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


def _sampling_field(field: dataclasses.Field[Any]) -> tuple[Any, Any]:
    """A pydantic field for one of `SamplingParams`: None stands for the default, and `BOUNDS` is the range."""
    note = f"default {str(field.default).lower() if field.type == 'bool' else field.default}"
    if field.type == "bool":
        return bool | None, Field(None, description=note)
    return {"int": int, "float": float}[str(field.type)] | None, _bounded(field.name, note)


def _bounded(name: str, description: str | None = None) -> Any:
    bounds = BOUNDS[name]
    return Field(None, ge=bounds.low, le=bounds.high, description=description)


class _OwnFields(_Strict):
    text: str = Field(min_length=1, max_length=MAX_TEXT_CHARS, description="what is said")
    language: str | None = Field(
        None, max_length=MAX_NAME_CHARS, description="id, name or BCP 47 tag; none: the text alone decides"
    )
    instruct: str | None = Field(None, max_length=MAX_INSTRUCT_CHARS, description="attributes of the voice")
    ref_text: str | None = Field(
        None, min_length=1, max_length=MAX_REF_TEXT_CHARS, description="what is said in ref_audio, word for word"
    )
    duration: float | None = _bounded("duration", "seconds to generate, before pauses are shortened; overrides speed")
    speed: float | None = _bounded("speed", "1 is the model's own pace")
    seed: int | None = _bounded("seed", "None draws one, which the result names")
    normalize_text: bool = Field(False, description="say English numbers, times, dates and money in words")
    format: str = Field("wav", description="file format", json_schema_extra={"enum": list(AUDIO_FORMATS)})
    sample_rate: int = Field(
        SAMPLE_RATE,
        validate_default=True,
        description="samples a second",
        json_schema_extra={"enum": list(SAMPLE_RATES)},
    )
    queue: Annotated[Queue, Field(strict=False)] = Queue.INTERACTIVE
    expires_in: float | None = Field(
        None, gt=0, le=MAX_EXPIRES_SECONDS, description="seconds in the queue after which the job is not started"
    )
    metadata: dict[
        Annotated[str, StringConstraints(min_length=1, max_length=MAX_NAME_CHARS)],
        Annotated[str, StringConstraints(max_length=MAX_METADATA_CHARS)],
    ] = Field(default_factory=dict, max_length=MAX_METADATA_ITEMS, description="kept and given back as it is")

    @field_validator("text", "language", "instruct", "ref_text", "metadata")
    @classmethod
    def _has_no_nul(cls, value: str | dict[str, str] | None) -> str | dict[str, str] | None:
        texts = (*value, *value.values()) if isinstance(value, dict) else (value or "",)
        if any("\0" in text for text in texts):
            raise ValueError("must not hold NUL characters (U+0000)")
        return value

    @field_validator("text")
    @classmethod
    def _has_something_to_speak(cls, text: str) -> str:
        if not is_speakable(text):
            raise ValueError("must hold something to speak: a letter, a digit or a tag such as [laughter]")
        return text

    @field_validator("format")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in AUDIO_FORMATS:
            raise ValueError("must be one of " + ", ".join(AUDIO_FORMATS))
        return name

    @field_validator("sample_rate")
    @classmethod
    def _fits_format(cls, rate: int, info: ValidationInfo) -> int:
        name = info.data.get("format")
        if name is not None and rate not in AUDIO_FORMATS[name].sample_rates:
            raise ValueError(f"must be one of {', '.join(map(str, AUDIO_FORMATS[name].sample_rates))} for {name}")
        return rate


_DEFINITIONS: dict[str, Any] = {field.name: _sampling_field(field) for field in dataclasses.fields(SamplingParams)}
if TYPE_CHECKING:
    _AllFields = _OwnFields
else:
    _AllFields = create_model("_AllFields", __base__=_OwnFields, **_DEFINITIONS)


class JobRequest(_AllFields):
    """One text to speak: the body of `POST /v1/jobs`. Language and instruct are checked when the job is planned."""

    @staticmethod
    def parse(body: object) -> JobRequest:
        """Check a decoded JSON body. Raises `InvalidJob` with every problem; the first is its `field` and `message`."""
        if not isinstance(body, dict):
            raise InvalidJob([("body", "must be a JSON object")])
        try:
            return JobRequest.model_validate(body)
        except ValidationError as error:
            raise InvalidJob([_problem(dict(problem)) for problem in error.errors(include_url=False)]) from None

    def to_synthesis_request(self, voice: VoicePrompt | None = None) -> SynthesisRequest:
        """What the engine is asked for; `voice` is the encoded reference of this job."""
        given = {name: getattr(self, name) for name in _DEFINITIONS}
        return SynthesisRequest(
            text=self.text,
            language=self.language,
            instruct=self.instruct,
            voice=voice,
            duration=self.duration,
            speed=self.speed,
            seed=self.seed,
            normalize_text=self.normalize_text,
            params=SamplingParams(**{name: value for name, value in given.items() if value is not None}),
        )


class JobError(_Strict):
    """Why a job failed: `type` is a stable word for programs, `title` a phrase, `detail` one line for people."""

    type: str
    title: str
    detail: str


class Timings(_Strict):
    """Wall-clock milliseconds of each stage: in the queue, in the window, in the model, decoding, uploading."""

    queued_ms: float
    batched_ms: float
    generated_ms: float
    decoded_ms: float
    uploaded_ms: float


class JobResult(_Strict):
    """The audio of a job that succeeded. `bytes` and `sha256` are of the object at `uri`."""

    audio_url: str | None = None
    uri: str
    sha256: str
    bytes: int
    content_type: str
    format: str
    duration_seconds: float
    sample_rate: int
    seed: int
    timings: Timings
    batch_size: int


class Job(BaseModel):
    """A job as clients see it. Times are UTC."""

    model_config = ConfigDict(frozen=True)

    id: str
    object: Literal["job"] = "job"
    status: Status
    queue: Queue
    created_at: datetime
    started_at: datetime | None = Field(None, description="Its last start; null while it waits, and if it never ran")
    finished_at: datetime | None = None
    attempts: int
    cancel_requested: bool = Field(False, description="It runs, and will end as cancelled")
    request: JobRequest
    warnings: tuple[str, ...] = ()
    error: JobError | None = None
    result: JobResult | None = None
    batch: None = Field(default=None, description="Always null: jobs cannot be submitted in batches yet")
    metadata: dict[str, str] = Field(default_factory=dict)
    trace_id: str | None = Field(None, description="W3C trace that the job was submitted in; log lines carry it")
    links: dict[str, str] = Field(default_factory=dict)

    def to_json(self) -> str:
        """JSON for clients; `request` names what was asked for and what always applies, not each absent field."""
        content = self.model_dump(mode="json")
        content["request"] = self.request.model_dump(mode="json", exclude_none=True)
        return json.dumps(content, ensure_ascii=False, separators=(",", ":"))


def _problem(problem: dict[str, Any]) -> tuple[str, str]:
    """(field, message) of one of pydantic's errors."""
    field = _printable(".".join(str(part) for part in problem["loc"] if part not in ("", "[key]"))) or "body"
    if problem["type"] == "extra_forbidden":
        close = difflib.get_close_matches(field, JobRequest.model_fields, n=1)
        return field, "is not a field" + (f"; did you mean {close[0]}?" if close else "")
    if problem["type"] == "missing":
        return field, "is required"
    if field in JobRequest.model_fields and (numbers := numbers_of(JobRequest.model_fields[field])):
        return field, f"must be {numbers}"
    message = str(problem["msg"]).removeprefix("Value error, ").removeprefix("Input ")
    return field, message[0].lower() + message[1:]


def _printable(name: str) -> str:
    """A field's name as a client sent it, fit for one line: control characters escaped, cut where it is very long."""
    return (name if name.isprintable() else ascii(name)[1:-1])[:MAX_NAME_CHARS]
