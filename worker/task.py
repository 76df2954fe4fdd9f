"""Celery's part: the function behind the message, which says only which job to look at."""

from __future__ import annotations

import logging
from collections.abc import Callable

from celery import Celery

from worker.jobs.names import TASK_NAME, is_job_id

logger = logging.getLogger(__name__)


def register_task(app: Celery, run: Callable[[str], None]) -> None:
    """Let `run` have the id of every message. It must not raise.

    Whatever a message holds, it is acknowledged when the function returns: the ledger knows the jobs, so a message
    that makes no sense is logged and forgotten. `typing=False` lets wrong arguments come this far.
    """

    def synthesize(*args: object, **kwargs: object) -> None:
        match args:
            case (str(job_id),) if is_job_id(job_id) and not kwargs:
                run(job_id)
            case _:
                logger.warning("a message names no job: %d arguments, %d keywords", len(args), len(kwargs))

    app.task(synthesize, name=TASK_NAME, typing=False, acks_late=True, ignore_result=True)
