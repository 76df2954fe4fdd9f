"""One line in the log for what fails again and again while a server is away."""

from __future__ import annotations

import logging
import threading

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
