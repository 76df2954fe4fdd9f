"""One line in the log, not hundreds, for what fails again and again while a server is away."""

from __future__ import annotations

import logging
import threading
import time

OUTAGE_SECONDS = 30.0
"""Failures that follow each other within this time belong to one outage."""


class OncePerOutage(logging.Filter):
    """Of the records with an `outage` in `extra` (the name of what fails), passes the first of each outage."""

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._last_seconds: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        server: str | None = getattr(record, "outage", None)
        if server is None:
            return True
        with self._lock:
            last_seconds = self._last_seconds.get(server)
            self._last_seconds[server] = record.created
        return last_seconds is None or record.created - last_seconds > OUTAGE_SECONDS


class Outage:
    """One for all callers of a server: a line when the first has to wait, one when none has to any more.

    Callers are told apart by a job's id. One that gives up says nothing of the server: its outage goes on until a call
    succeeds.
    """

    def __init__(self, logger: logging.Logger, what: str) -> None:
        """`what` waits, in the singular: upload."""
        self._logger = logger
        self._what = what
        self._lock = threading.Lock()
        self._began_seconds: float | None = None
        self._waiting: set[str] = set()

    def waits(self, job_id: str, error: Exception) -> None:
        with self._lock:
            self._waiting.add(job_id)
            if self._began_seconds is not None:
                return
            self._began_seconds = time.monotonic()
        self._logger.warning("%s waits, and others may: %s", self._what, error, extra={"job": job_id})

    def gives_up(self, job_id: str) -> None:
        with self._lock:
            self._waiting.discard(job_id)

    def succeeded(self, job_id: str) -> None:
        with self._lock:
            self._waiting.discard(job_id)
            if self._began_seconds is None or self._waiting:
                return
            seconds, self._began_seconds = time.monotonic() - self._began_seconds, None
        self._logger.info("no %s waits any more, after %.1f s", self._what, seconds, extra={"job": job_id})
