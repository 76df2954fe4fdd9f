"""Long polls: holding an answer until a job has ended."""

from __future__ import annotations

import logging
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

from worker.jobs.errors import QueueUnavailable
from worker.jobs.ledger import JobRecord, Ledger

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5
"""A waiter looks this often, whatever it is told: what Redis publishes is lost on who is not connected."""
_LISTEN_SECONDS = 0.1


class LongPoll:
    """Waits for jobs on behalf of at most `max_waiting` callers at once; `stopping` ends every wait."""

    def __init__(
        self, ledger: Ledger, stopping: threading.Event, max_waiting: int, look_seconds: float = LOOK_SECONDS
    ) -> None:
        self._ledger = ledger
        self._stopping = stopping
        self._places = threading.Semaphore(max_waiting)
        self._look_seconds = look_seconds
        self._endings = Endings(ledger, stopping)

    def wait(self, record: JobRecord, seconds: float) -> tuple[JobRecord, bool]:
        """The job as it is once it has ended or `seconds` have passed, and whether the wait was honoured.

        It is not where every place is taken or the process stops: RFC 7240 lets a server decline, and a client that
        sees no `Preference-Applied` asks again after `Retry-After`. A record that expires meanwhile stays as it was.
        """
        if record.status.is_final:
            return record, True
        if not self._places.acquire(blocking=False):
            return record, False
        try:
            return self._watch(record, time.monotonic() + seconds)
        finally:
            self._places.release()

    def _watch(self, record: JobRecord, deadline_seconds: float) -> tuple[JobRecord, bool]:
        with self._endings.of(record.id) as told:
            while True:
                # Looked at once more now that an end would be told: it may have come just before.
                record = self._ledger.get(record.id) or record
                left_seconds = deadline_seconds - time.monotonic()
                if record.status.is_final or left_seconds <= 0:
                    return record, True
                told.wait(min(self._look_seconds, left_seconds))
                if self._stopping.is_set():
                    return record, False
                told.clear()


class Endings:
    """One thread that listens for all waiters of the process; it starts with the first of them."""

    def __init__(self, ledger: Ledger, stopping: threading.Event) -> None:
        self._ledger = ledger
        self._stopping = stopping
        self._lock = threading.Lock()
        self._waiters: dict[str, set[threading.Event]] = defaultdict(set)
        self._thread: threading.Thread | None = None

    @contextmanager
    def of(self, job_id: str) -> Iterator[threading.Event]:
        """An event that is set when the job ends, and when the process stops."""
        told = threading.Event()
        with self._lock:
            self._waiters[job_id].add(told)
            if self._thread is None:
                self._thread = threading.Thread(target=self._listen, name="endings", daemon=True)
                self._thread.start()
        try:
            yield told
        finally:
            with self._lock:
                self._waiters[job_id].discard(told)
                if not self._waiters[job_id]:
                    del self._waiters[job_id]

    def _listen(self) -> None:
        while not self._stopping.is_set():
            try:
                with self._ledger.endings() as next_id:
                    while not self._stopping.is_set():
                        if (job_id := next_id(_LISTEN_SECONDS)) is not None:
                            self._tell(job_id)
            except QueueUnavailable as error:
                if not self._stopping.is_set():
                    logger.warning("not told of jobs that end: %s", error, extra={"outage": "redis"})
                self._stopping.wait(LOOK_SECONDS)
        with self._lock:
            for waiters in self._waiters.values():
                for told in waiters:
                    told.set()

    def _tell(self, job_id: str) -> None:
        with self._lock:
            for told in self._waiters.get(job_id, ()):
                told.set()
