"""Which environment the API and the worker get: the caller's, completed by what the local stack provides."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from infra.local.credentials import S3Keys
from infra.local.services import CHECKOUT

DEMO_CHECKPOINT = CHECKOUT / "checkpoints" / "demo"
DEFAULT_API_PORT = 8080
AWS_LOCATION = ("AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3")
"""Variables that would turn boto3 away from the keys and the address of the local S3 server."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """What of the stack is to be local: a service whose address the caller gives is used, not started."""

    redis: bool
    s3: bool
    api_port: int | None

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Wanted:
        port = environ.get("OMNIVOICE_API_PORT") or str(DEFAULT_API_PORT)
        return cls(
            redis=not environ.get("OMNIVOICE_REDIS_URL"),
            s3=not environ.get("OMNIVOICE_S3_ENDPOINT"),
            # 0 asks for any free port; what is no number is left to the settings to refuse.
            api_port=int(port) if port.isdecimal() else None,
        )


def complete(
    environ: Mapping[str, str], redis_port: int | None, s3_port: int | None, api_port: int | None, keys: S3Keys | None
) -> dict[str, str]:
    """A copy of `environ` for the services; None for a part that the caller provides himself."""
    environment = dict(environ)
    if not environment.get("OMNIVOICE_MODEL"):
        environment["OMNIVOICE_MODEL"] = str(DEMO_CHECKPOINT)
        if not environment.get("OMNIVOICE_DEVICE"):
            environment["OMNIVOICE_DEVICE"] = "cpu"  # so small a model gains nothing from a GPU
    if redis_port is not None:
        environment["OMNIVOICE_REDIS_URL"] = f"redis://127.0.0.1:{redis_port}/0"
    if api_port is not None:
        environment["OMNIVOICE_API_PORT"] = str(api_port)
    if s3_port is not None and keys is not None:
        for name in AWS_LOCATION:
            environment.pop(name, None)
        environment["OMNIVOICE_S3_ENDPOINT"] = f"http://127.0.0.1:{s3_port}"
        environment["AWS_ACCESS_KEY_ID"] = keys.access_key
        environment["AWS_SECRET_ACCESS_KEY"] = keys.secret_key
    environment["PYTHONUNBUFFERED"] = "1"
    return environment
