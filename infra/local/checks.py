"""What API and worker would refuse at their start, asked before `up` stops or starts anything for new settings."""

from __future__ import annotations

import json
import subprocess
import sys

from api.access import check_exposure, parse_origins
from api.keys import load_keys
from api.metrics import parse_readers
from infra.local.environment import Wanted
from infra.local.errors import LocalError
from omnivoice.errors import CheckpointError
from omnivoice.location import local_folder
from worker.jobs.errors import StartupError
from worker.jobs.settings import Settings
from worker.jobs.startup import check_redis, check_storage

LOOK = """
import json, sys
from omnivoice.config import EngineConfig
try:
    EngineConfig(**json.loads(sys.argv[1])).resolved_dtype()
except ValueError as error:
    print(error)
"""
"""In a process of its own: nothing here loads torch."""


def check(settings: Settings, wanted: Wanted) -> None:
    """Raises `LocalError` with what the service itself would say. Quick: no model is loaded, nothing downloaded."""
    try:
        keys = load_keys(settings.api_keys_file)
        check_exposure(settings, keys)
        parse_readers(settings, keys)
        parse_origins(settings.cors_origins)
        if settings.synthesizer == "engine":
            folder = local_folder(settings.model)
            if folder is not None and not (folder / "config.json").is_file():
                raise CheckpointError(f"{folder / 'config.json'}: no such file")
            _check_device(settings)
        if not wanted.redis:
            check_redis(settings)
        if not wanted.s3:
            check_storage(settings)
    except CheckpointError as error:
        raise LocalError(f"OMNIVOICE_MODEL: {error}") from None
    except StartupError as error:
        raise LocalError(" ".join(str(error).split())) from None


def _check_device(settings: Settings) -> None:
    if settings.device in ("auto", "cpu") and settings.dtype == "auto" and not settings.fp8:
        return  # these are always there, and torch takes seconds to say so
    chosen = {"device": settings.device, "dtype": settings.dtype, "fp8": settings.fp8}
    look = [sys.executable, "-c", LOOK, json.dumps(chosen)]
    refusal = subprocess.run(look, capture_output=True, text=True, check=False).stdout.strip()
    if refusal:  # what else may be wrong there, the worker tells better
        field, _, text = refusal.partition(": ")
        raise LocalError(f"OMNIVOICE_{field.upper()}: {text}")
