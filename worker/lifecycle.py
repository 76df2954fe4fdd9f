"""The end of a worker: SIGTERM closes windows at once, finishes what runs, hands back the rest, within a bound.

Celery's warm shutdown stops consuming and waits for the tasks, without a limit. This makes the tasks end: their futures
are resolved, by the batcher or, when the synthesizer hangs, without it.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import queue
import threading
import time
from collections.abc import Callable

from worker.batcher import DRAINING, Batcher
from worker.jobs.errors import QueueUnavailable
from worker.jobs.ledger import Ledger
from worker.leases import Leases

logger = logging.getLogger(__name__)

FORCED_EXIT_STATUS = 1
UPLOAD_SHARE = 0.3
"""Part of the drain that is kept for uploads and the ledger after the synthesizer has had its time."""
RELEASE_SHARE = 0.1
FINAL_SECONDS = 1.0
"""Beyond the drain, for an interpreter that hangs in its own end."""
POLL_SECONDS = 0.02


class Drain:
    """Drains the worker once it is asked to; `is_requested` turns true at once."""

    def __init__(
        self, batcher: Batcher, leases: Leases, ledger: Ledger, drain_seconds: float, on_begin: Callable[[], None]
    ) -> None:
        self._batcher = batcher
        self._leases = leases
        self._ledger = ledger
        self._drain_seconds = drain_seconds
        self._on_begin = on_begin
        self.is_requested = False
        # Not an Event: `request` runs in a signal handler, which must not wait for a lock that the interrupted code
        # may hold. A SimpleQueue may be used there.
        self._requests: queue.SimpleQueue[None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._wait_and_drain, name="drain", daemon=True)

    def run(self) -> None:
        self._thread.start()

    def request(self) -> None:
        self.is_requested = True
        self._requests.put(None)

    def _wait_and_drain(self) -> None:
        self._requests.get()
        began_at = time.monotonic()
        # Whatever hangs below (a socket, a pool thread, the interpreter's own exit), this ends the process in time.
        last_resort = threading.Timer(self._drain_seconds, self._force_exit)
        last_resort.daemon = True
        last_resort.start()
        # No Python thread runs any more while the interpreter ends; this one is not Python's.
        faulthandler.dump_traceback_later(self._drain_seconds + FINAL_SECONDS, exit=True)
        logger.info("draining for at most %g s", self._drain_seconds)
        self._on_begin()
        self._batcher.drain()
        synthesis_end = began_at + self._drain_seconds * (1 - UPLOAD_SHARE)
        if not _wait_until(lambda: self._batcher.is_idle, synthesis_end):
            logger.warning("what runs does not end in time and is handed back")
            self._batcher.surrender(DRAINING)
        if not _wait_until(lambda: not self._leases.claims(), began_at + self._drain_seconds * (1 - RELEASE_SHARE)):
            self._release_rest()

    def _release_rest(self) -> None:
        claims = self._leases.claims()
        logger.warning("%d jobs are handed back while their tasks hang", len(claims))
        try:
            self._ledger.release(claims)
        except QueueUnavailable as error:
            logger.warning("not handed back, their leases will lapse: %s", error)

    def _force_exit(self) -> None:
        logger.warning("the drain took longer than %g s: the process ends", self._drain_seconds)
        os._exit(FORCED_EXIT_STATUS)


def _wait_until(condition: Callable[[], bool], end: float) -> bool:
    while not condition():
        if time.monotonic() >= end:
            return False
        time.sleep(POLL_SECONDS)
    return True
