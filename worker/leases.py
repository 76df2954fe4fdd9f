"""Keeps the leases of all jobs in hand alive, and passes on what the ledger answers: cancelled, or lost."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from worker import metrics
from worker.jobs.errors import QueueUnavailable
from worker.jobs.ledger import Claim, Hold, Ledger

logger = logging.getLogger(__name__)

BEATS_PER_LEASE = 4
"""Three beats may fail in a row before a lease lapses."""
_LISTEN_SECONDS = 1.0


@dataclass(slots=True, eq=False)
class Lease:
    """One job in hand. `state` is what the ledger said last."""

    claim: Claim
    state: Hold = Hold.HELD


class Leases:
    """The jobs that this worker has claimed, with the thread that extends their leases, at once when one is cancelled.

    `on_gone` is called, on that thread, with a claim that need not be worked on any more. It is called again at every
    beat until the job is let go: a request that was just on its way into the synthesizer is caught by the next one.
    """

    def __init__(self, ledger: Ledger, lease_seconds: float, on_gone: Callable[[Claim], None]) -> None:
        self._ledger = ledger
        self._interval_seconds = lease_seconds / BEATS_PER_LEASE
        self._on_gone = on_gone
        self._lock = threading.Lock()
        self._held: dict[tuple[str, int], Lease] = {}
        self._thread = threading.Thread(target=self._beat_for_ever, name="heartbeat", daemon=True)
        self._listener = threading.Thread(target=self._listen_for_ever, name="cancels", daemon=True)
        self._is_due = threading.Event()

    def run(self) -> None:
        self._thread.start()
        self._listener.start()

    @contextmanager
    def hold(self, claim: Claim) -> Iterator[Lease]:
        key = (claim.id, claim.token)
        lease = Lease(claim)
        with self._lock:
            self._held[key] = lease
            metrics.JOBS_HELD.set(len(self._held))
        try:
            yield lease
        finally:
            with self._lock:
                del self._held[key]
                metrics.JOBS_HELD.set(len(self._held))

    def claims(self) -> list[Claim]:
        with self._lock:
            return [lease.claim for lease in self._held.values()]

    def _beat_for_ever(self) -> None:
        while True:
            self._is_due.wait(self._interval_seconds)
            self._is_due.clear()
            try:
                self._beat()
            except QueueUnavailable as error:
                logger.warning("heartbeat failed: %s", error, extra={"outage": "redis: heartbeats"})
            except Exception:
                # Without heartbeats every job in hand would be run twice.
                logger.exception("heartbeat failed")

    def _listen_for_ever(self) -> None:
        while True:
            try:
                with self._ledger.cancels() as next_id:
                    while True:
                        job_id = next_id(_LISTEN_SECONDS)
                        if any(claim.id == job_id for claim in self.claims()):
                            self._is_due.set()
            except QueueUnavailable as error:  # of which the heartbeat warns; it tells of cancels too, if later
                logger.debug("not told of cancels: %s", error)
            except Exception:
                logger.exception("not told of cancels")
            time.sleep(_LISTEN_SECONDS)

    def _beat(self) -> None:
        with self._lock:
            leases = list(self._held.values())
        if not leases:
            return
        # Two leases of one job: the older one had lapsed before this worker claimed the job again.
        newest = {lease.claim.id: lease for lease in sorted(leases, key=lambda lease: lease.claim.token)}
        states = self._ledger.heartbeat([lease.claim for lease in newest.values()])
        for lease in leases:
            state = states[lease.claim.id] if lease is newest[lease.claim.id] else Hold.LOST
            if state is Hold.LOST and lease.state is not Hold.LOST:
                metrics.LEASES_LOST.inc()
                logger.warning("lease lost", extra=lease.claim.log_fields)
            lease.state = state
            if lease.state is not Hold.HELD:
                self._on_gone(lease.claim)
