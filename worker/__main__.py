"""`python -m worker`: check everything, say what is set, consume. `python -m worker doctor`: look at everything, tell.

A check that fails is one line on stderr and exit status 2, before anything has been taken from the queue. The model is
loaded here and used here: this process never forks.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from worker import metrics
from worker.doctor import command as doctor
from worker.doctor.command import Role
from worker.jobs.errors import StartupError
from worker.jobs.settings import Settings
from worker.jobs.startup import check_redis, check_storage
from worker.logs import logs_of_a_start

if TYPE_CHECKING:
    from worker.app import Worker

FAILED_START_STATUS = 2
SWITCH_INTERVAL_SECONDS = 0.0005
"""With Python's 5 ms a batcher that is busy keeps the consumer and the uploads waiting: a message then takes 17 ms
(median) from the queue to its task, with this 4 ms."""

logger = logging.getLogger("worker")


def main(environ: Mapping[str, str]) -> int:
    """Exit status of the process."""
    try:
        settings = Settings.from_environment(environ)
        with logs_of_a_start(settings.log_level):
            worker = _start(settings)
    except StartupError as error:
        sys.stderr.write(" ".join(str(error).split()) + "\n")
        return FAILED_START_STATUS
    logger.info("starting", extra={"settings": settings.describe()})
    sys.setswitchinterval(SWITCH_INTERVAL_SECONDS)
    return worker.run()


def _start(settings: Settings) -> Worker:
    """Everything that the worker needs, checked and loaded. Raises `StartupError`."""
    check_redis(settings)
    check_storage(settings)
    metrics.serve(settings)
    # Imported late: a missing Redis is told at once, not after the seconds that the model's libraries take to load.
    from worker.app import Worker  # noqa: PLC0415
    from worker.synthesizers import build_synthesizer  # noqa: PLC0415

    return Worker(settings, build_synthesizer(settings))


def _diagnose(environ: Mapping[str, str], role: Role) -> int:
    try:
        settings = Settings.from_environment(environ)
    except StartupError as error:
        sys.stderr.write(f"{error}\n")
        return FAILED_START_STATUS
    return doctor.run(settings, role)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m worker", description="Work on jobs (settings: OMNIVOICE_*).")
    commands = parser.add_subparsers(dest="command", title="instead of that")
    diagnosis = commands.add_parser(
        "doctor", help="check Redis, object store, checkpoint and GPU; exit status 1 where something needed is wrong"
    )
    diagnosis.add_argument(
        "--for", dest="role", choices=["worker", "api"], default="worker", help="an API needs no checkpoint and no GPU"
    )
    return parser


if __name__ == "__main__":
    options = _parser().parse_args()
    sys.exit(_diagnose(os.environ, options.role) if options.command == "doctor" else main(os.environ))
