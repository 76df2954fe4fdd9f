"""How long jobs stand still after a fault, read from Redis itself."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from redis import Redis
from redis.exceptions import RedisError

from tests.soak.checker import Keys, waiting_jobs
from tests.soak.evidence import FINAL

LOOK_SECONDS = 0.05
LEASED_LOOK_SECONDS = 0.01
GIVE_UP_SECONDS = 120.0

Fields = Mapping[str, str | None]


@dataclass(frozen=True)
class Recovery:
    """Seconds from a fault (or its end) until the first, and until the last, of the jobs concerned had moved.

    `at` is the fault's time in the schedule, by which it is told from the others.
    """

    kind: str
    at: float
    began_at: float
    num_jobs: int
    first_seconds: float
    last_seconds: float


class Watch:
    """Follows the jobs that a fault has in its hands. Uses Redis past the proxy."""

    def __init__(self, redis_url: str, keys: Keys) -> None:
        self._redis = Redis.from_url(redis_url, decode_responses=True, socket_timeout=2.0, socket_connect_timeout=2.0)
        self._keys = keys
        self._threads: list[threading.Thread] = []
        self.recoveries: list[Recovery] = []
        """Of one watch at a time appended, by its thread."""

    def unfinished(self) -> list[str]:
        """Ids of the jobs that wait or are leased; none where Redis does not answer."""
        try:
            return waiting_jobs(self._redis, [*self._keys.due, *self._keys.leases])
        except (RedisError, OSError):
            return []

    def held_by(self, worker: str) -> list[str]:
        """Ids of the jobs that a worker has leased; none where Redis does not answer."""
        try:
            ids = waiting_jobs(self._redis, self._keys.leases)
        except (RedisError, OSError):
            return []
        fields = self._read(ids, "worker")
        return [job for job in ids if fields.get(job, {}).get("worker") == worker]

    def until_elsewhere(self, kind: str, at: float, jobs: list[str], worker: str) -> None:
        """Measure from now until the jobs are another worker's, or have ended."""
        self._follow(kind, at, jobs, lambda fields: fields.get("worker") not in (None, worker))

    def wait_until_leased_elsewhere(self, jobs: list[str], worker: str, seconds: float) -> None:
        """Return at the moment at which another worker leases one of the jobs, or after `seconds`."""
        deadline = time.monotonic() + seconds
        while jobs and time.monotonic() < deadline:
            holders = self._read(jobs, "worker").values()
            if any(fields["worker"] not in (None, worker) for fields in holders):
                return
            time.sleep(LEASED_LOOK_SECONDS)

    def until_ended(self, kind: str, at: float, jobs: list[str]) -> None:
        """Measure from now until the jobs have ended."""
        self._follow(kind, at, jobs, lambda fields: False)

    def join(self) -> None:
        for thread in self._threads:
            thread.join(GIVE_UP_SECONDS)

    def _follow(self, kind: str, at: float, jobs: list[str], has_moved: Callable[[Fields], bool]) -> None:
        if jobs:
            arguments = (kind, at, jobs, has_moved)
            thread = threading.Thread(target=self._follow_on, args=arguments, name=f"watch-{kind}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def _follow_on(self, kind: str, at: float, jobs: list[str], has_moved: Callable[[Fields], bool]) -> None:
        began_at = time.monotonic()
        left, first = set(jobs), None
        while left and time.monotonic() - began_at < GIVE_UP_SECONDS:
            for job, fields in self._read(list(left), "status", "worker").items():
                if fields.get("status") in FINAL or has_moved(fields):
                    left.discard(job)
                    first = first or time.monotonic()
            time.sleep(LOOK_SECONDS)
        now = time.monotonic()
        self.recoveries.append(Recovery(kind, at, began_at, len(jobs), (first or now) - began_at, now - began_at))

    def _read(self, jobs: list[str], *names: str) -> dict[str, dict[str, str | None]]:
        """Fields by job; none of them where Redis does not answer."""
        try:
            with self._redis.pipeline(transaction=False) as pipeline:
                for job in jobs:
                    pipeline.hmget(self._keys.job(job), *names)
                answers: list[list[str | None]] = pipeline.execute()
        except (RedisError, OSError):
            return {}
        return {job: dict(zip(names, values, strict=True)) for job, values in zip(jobs, answers, strict=True)}


def table(recoveries: list[Recovery], intervals: Mapping[float, tuple[float, float]]) -> list[str]:
    """A line a kind of fault. `intervals` are begin and end of each fault, by its time in the schedule: a recovery that
    another fault overlapped is told apart, in the last column."""
    lines = [
        f"{'recovery after':<19} {'n':>3} {'jobs':>5} {'lasted':>9} {'first':>9} {'max':>9} {'last':>9} {'max':>9}"
    ]
    lines[0] += f" {'beside':>9}"
    for kind in sorted({recovery.kind for recovery in recoveries}):
        of_kind = [recovery for recovery in recoveries if recovery.kind == kind]
        alone = [recovery for recovery in of_kind if not _is_overlapped(recovery, intervals)]
        first, last = [item.first_seconds for item in alone], [item.last_seconds for item in alone]
        lasted = [stop - start for start, stop in (intervals[item.at] for item in of_kind)]
        beside = [recovery.last_seconds for recovery in of_kind if recovery not in alone]
        seconds = [max(lasted), _median(first), max(first, default=None), _median(last), max(last, default=None)]
        line = f"{kind:<19} {len(of_kind):>3} {sum(recovery.num_jobs for recovery in of_kind):>5}"
        lines.append(line + "".join(f" {_shown(value)}" for value in (*seconds, max(beside, default=None))))
    lines.append(
        "lasted: the fault, until its target was ready again, max; from its end (of a worker's: its begin) to the"
    )
    lines.append(
        "first and the last of the jobs concerned, median and max; beside: last, max, where other faults overlapped"
    )
    return lines


def _median(seconds: list[float]) -> float | None:
    return statistics.median(seconds) if seconds else None


def _shown(seconds: float | None) -> str:
    return f"{'-':>9}" if seconds is None else f"{seconds:>7.2f} s"


def _is_overlapped(recovery: Recovery, intervals: Mapping[float, tuple[float, float]]) -> bool:
    """Whether a fault other than the recovery's own was at work in it."""
    end = recovery.began_at + recovery.last_seconds
    others = [interval for at, interval in intervals.items() if at != recovery.at]
    return any(start < end and stop > recovery.began_at for start, stop in others)
