"""One line in the log, not hundreds, for what fails again and again while a server is away."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import defaultdict

OUTAGE_SECONDS = 30.0
"""Failures that follow each other within this time belong to one outage."""
LATE_SECONDS = 6.0
"""A call may fail so long after its server is back: it was under way, and no call waits longer for an answer."""


class OncePerOutage(logging.Filter):
    """Two lines an outage.

    Of the records with an `outage` in `extra`, the name of what fails (`redis`, or `redis: heartbeats`, say), the first
    of each outage passes; of those with a `recovery`, the name of a server that answers, the first after one that did.
    """

    def __init__(self) -> None:
        super().__init__()
        self._lock = threading.Lock()
        self._last_seconds: dict[str, dict[str, float]] = defaultdict(dict)
        self._recovered_seconds: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        outage: str | None = getattr(record, "outage", None)
        recovery: str | None = getattr(record, "recovery", None)
        with self._lock:
            if outage is not None:
                return self._begins(outage, record.created)
            return recovery is None or self._ends(recovery, record.created)

    def _begins(self, outage: str, now_seconds: float) -> bool:
        server = outage.partition(":")[0]
        if now_seconds - self._recovered_seconds.get(server, -math.inf) < LATE_SECONDS:
            return False
        last_seconds = self._last_seconds[server].get(outage, -math.inf)
        self._last_seconds[server][outage] = now_seconds
        return now_seconds - last_seconds > OUTAGE_SECONDS

    def _ends(self, server: str, now_seconds: float) -> bool:
        if self._last_seconds.pop(server, None) is None:
            return False
        self._recovered_seconds[server] = now_seconds
        return True


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
