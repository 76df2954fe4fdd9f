"""Long polls: holding an answer until a job has ended."""

from __future__ import annotations

import threading
import time

from worker.jobs.ledger import JobRecord, Ledger

_FIRST_LOOK_SECONDS = 0.05
_LONGEST_LOOK_SECONDS = 0.5
_GROWTH = 1.5


class LongPoll:
    """Waits for jobs on behalf of at most `max_waiting` callers at once; `stopping` ends every wait."""

    def __init__(self, ledger: Ledger, stopping: threading.Event, max_waiting: int) -> None:
        self._ledger = ledger
        self._stopping = stopping
        self._places = threading.Semaphore(max_waiting)

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
        pause_seconds = _FIRST_LOOK_SECONDS
        while not record.status.is_final:
            left_seconds = deadline_seconds - time.monotonic()
            if left_seconds <= 0:
                break
            if self._stopping.wait(min(pause_seconds, left_seconds)):
                return record, False
            pause_seconds = min(pause_seconds * _GROWTH, _LONGEST_LOOK_SECONDS)
            record = self._ledger.get(record.id) or record
        return record, True
