"""The command: look at every part, say what was found."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from typing import Literal

from worker.doctor.findings import Finding, has_errors, report
from worker.doctor.object_store import check_storage
from worker.doctor.redis_server import check_redis
from worker.jobs.settings import Settings

WRONG_STATUS = 1

Role = Literal["worker", "api"]


def run(settings: Settings, role: Role) -> int:
    """Print the report; the exit status: 0, or 1 where something that the `role` needs is wrong."""
    logging.disable(logging.WARNING)  # the report says it, and in order
    parts: dict[str, Sequence[Finding]] = {"redis": check_redis(settings), "object store": check_storage(settings)}
    if role == "worker":
        # Late: an API's machine has no torch.
        from worker.doctor.gpu import check_gpu  # noqa: PLC0415
        from worker.doctor.model import check_model, weight_bytes  # noqa: PLC0415

        parts["model"] = check_model(settings)
        parts["gpu"] = check_gpu(settings, weight_bytes(settings))
    sys.stdout.write(report(parts))
    return WRONG_STATUS if any(has_errors(findings) for findings in parts.values()) else 0
