"""What API and worker would refuse at their start, asked before `up` stops or starts anything for new settings."""

from __future__ import annotations

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


def check(settings: Settings, wanted: Wanted) -> None:
    """Raises `LocalError` with what the service itself would say. Quick: no model is loaded, nothing downloaded."""
    try:
        keys = load_keys(settings.api_keys_file)
        check_exposure(settings, keys)
        parse_readers(settings, keys)
        parse_origins(settings.cors_origins)
        if settings.synthesizer == "engine":
            local_folder(settings.model)
        if not wanted.redis:
            check_redis(settings)
        if not wanted.s3:
            check_storage(settings)
    except CheckpointError as error:
        raise LocalError(f"OMNIVOICE_MODEL: {error}") from None
    except StartupError as error:
        raise LocalError(" ".join(str(error).split())) from None
