"""Publishes again what is overdue: jobs whose message was lost, whose worker died, or whose back-off is over.

And, behind all others, what waits for room among the messages, should the claims have left some.

Every worker and every API process runs one: jobs expire while no worker is there, too. `Ledger.overdue` moves the due
time on as it hands out an id, so two of them never publish the same job at once, and a message that gets lost again is
only a later round's work.

While Redis is away no lease can be extended, and when it is back all may have lapsed, of workers that are well. So none
is taken away before Redis has been there for a lease. Since it asks all the time, the reconciler is also who says that
Redis is back (`outages.OncePerOutage` lets that pass where the process has complained).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable

from worker.jobs.errors import QueueUnavailable
from worker.jobs.ledger import Ledger
from worker.jobs.models import Queue

logger = logging.getLogger(__name__)

ROUNDS_PER_LEASE = 4
MAX_LOOKS_PER_ROUND = 1_000
"""Jobs of each queue that a round looks at, in one script of about 10 ms, in which Redis serves nobody else. Jobs that
wait for their turn are looked at as well: with a long backlog this bounds how soon a lost message is noticed."""


class Reconciler:
    """`publish` puts one id before all others of its queue; False where the broker refused: a later round does it."""

    def __init__(
        self,
        ledger: Ledger,
        publish: Callable[[str, Queue], bool],
        lease_seconds: float,
        stopped: threading.Event | None = None,
    ) -> None:
        self._ledger = ledger
        self._publish = publish
        self._lease_seconds = lease_seconds
        self._interval_seconds = lease_seconds / ROUNDS_PER_LEASE
        self._stopped = stopped or threading.Event()
        self._data_name: str | None = None
        self._last_outage = -math.inf
        self._thread = threading.Thread(target=self._reconcile_for_ever, name="reconciler", daemon=True)

    def run(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()

    def _reconcile_for_ever(self) -> None:
        while not self._stopped.is_set():
            num_published = 0
            try:
                num_published = self.reconcile()
                logger.info("Redis answers again", extra={"recovery": "redis"})
            except QueueUnavailable as error:
                self._last_outage = time.monotonic()
                logger.warning("reconciling failed: %s", error, extra={"outage": "redis"})
            except Exception:
                # Without this thread a lost message is a lost job.
                logger.exception("reconciling failed")
            if num_published < MAX_LOOKS_PER_ROUND:
                self._stopped.wait(self._interval_seconds)

    def reconcile(self) -> int:
        """One round; returns how many ids were published."""
        began = time.monotonic()
        self._notice_loss()
        if time.monotonic() - began > self._interval_seconds:  # frozen
            self._last_outage = time.monotonic()
        overdue = self._ledger.overdue(MAX_LOOKS_PER_ROUND, spares_leases=not self._has_redis_been_there())
        for job_id, queue in reversed(overdue):  # the last to be put first is the first
            if self._publish(job_id, queue):
                logger.info("published again", extra={"job": job_id})
        return len(overdue) + self._ledger.refill(MAX_LOOKS_PER_ROUND)

    def _has_redis_been_there(self) -> bool:
        """Whether it has been for a lease, as far as can be seen from here and as it says itself."""
        seen_seconds = time.monotonic() - self._last_outage
        return min(seen_seconds, self._ledger.up_seconds()) >= self._lease_seconds

    def _notice_loss(self) -> None:
        data_name = self._ledger.data_name()
        if self._data_name not in (None, data_name):
            logger.error("Redis has lost its data (flushed, or started without its file): all jobs until now are gone")
        self._data_name = data_name
