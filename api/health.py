"""`/livez` and `/readyz`, for whoever starts, stops and routes to this process."""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass

from flask import Blueprint, Response, jsonify

from api.problems import RETRY_AFTER_OUTAGE_SECONDS, FieldError, ProblemError
from worker.jobs.errors import QueueUnavailable, StorageError
from worker.jobs.ledger import Ledger
from worker.jobs.storage import ObjectStore

STORAGE_CHECK_SECONDS = 5.0
"""A check of the bucket writes an object, and `/readyz` needs no key: it is not made more often than this."""

_log = logging.getLogger(__name__)


class StorageProbe:
    """The bucket's state, at most `STORAGE_CHECK_SECONDS` old unless a check is under way."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self._checking = threading.Lock()
        self._next_check_seconds: float | None = None
        self._usable = False

    def usable(self) -> bool:
        """Whether the bucket takes and gives objects. Only the very first caller's rivals wait for a check: when the
        store does not answer, one takes seconds, and probes must not use up the threads."""
        due = self._next_check_seconds
        if due is not None and time.monotonic() < due:
            return self._usable
        if not self._checking.acquire(blocking=due is None):
            return self._usable
        try:
            if self._next_check_seconds == due:
                self._usable = self._check()
                self._next_check_seconds = time.monotonic() + STORAGE_CHECK_SECONDS
            return self._usable
        finally:
            self._checking.release()

    def _check(self) -> bool:
        try:
            self._store.check()
        except StorageError as error:
            _log.warning("not ready: %s", error, extra={"outage": "store"})
            return False
        return True


@dataclass(frozen=True, slots=True)
class HealthRoutes:
    """Liveness asks nothing of others: a restart of this process would not mend Redis. Readiness asks them all."""

    ledger: Ledger
    storage: StorageProbe

    def blueprint(self) -> Blueprint:
        routes = Blueprint("health", __name__)
        routes.add_url_rule("/livez", "live", self.live, methods=["GET"])
        routes.add_url_rule("/readyz", "ready", self.ready, methods=["GET"])
        return routes

    def live(self) -> Response:
        return _uncached(jsonify(status="ok"))

    def ready(self) -> Response:
        missing = []
        if not self._redis_answers():
            missing.append(FieldError(field="redis", detail="cannot be reached"))
        if not self.storage.usable():
            missing.append(FieldError(field="bucket", detail="cannot be read and written"))
        if missing:
            detail = "not ready: " + ", ".join(f"{item.field} {item.detail}" for item in missing)
            headers = {"Retry-After": str(RETRY_AFTER_OUTAGE_SECONDS), "Cache-Control": "no-store"}
            raise ProblemError(503, detail, kind="not-ready", title="Not ready", errors=missing, headers=headers)
        return _uncached(jsonify(status="ready"))

    def _redis_answers(self) -> bool:
        try:
            self.ledger.ping()
        except QueueUnavailable as error:
            _log.warning("not ready: %s", error, extra={"outage": "redis"})
            return False
        return True


def _uncached(response: Response) -> Response:
    response.cache_control.no_store = True
    return response
