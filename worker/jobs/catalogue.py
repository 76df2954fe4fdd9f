"""The ledger for an operator: finding jobs among all of them, and what clients and workers may not do with one.

Finding looks at every record. That is fine for a person who asks now and then, and no way to serve clients.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from redis import Redis

from worker.jobs import names
from worker.jobs.models import Queue, Status
from worker.jobs.records import JobRecord, is_readable
from worker.jobs.scripts import Scripts
from worker.jobs.settings import Settings

REQUEUED = "requeued"
READ_AT_ONCE = 500
_FIELDS = ("schema", "status", "queue", "owner", "created_ms", "finished_ms", "attempts", "error")


@dataclass(frozen=True, slots=True)
class Row:
    """A job in a list. Times are ms since 1970 by Redis's clock; `error` is the type of what it failed of."""

    id: str
    status: Status
    queue: Queue
    owner: str
    created_ms: int
    finished_ms: int | None
    attempts: int
    error: str | None


class Catalogue:
    """All jobs of one ledger. Methods raise redis-py's errors."""

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self._redis = redis
        self._prefix = settings.redis_prefix
        self._bounds = (settings.max_published, round(settings.lease_seconds * 1_000))
        self._scripts = Scripts(redis, self._prefix)

    def rows(self, statuses: Collection[Status] = (), *, newest_first: bool = True) -> Iterator[Row]:
        """Jobs by age, of some statuses or of all; those of a newer release are left out."""
        start = names.job_key(self._prefix, "")
        keys: list[str] = sorted(set(self._redis.scan_iter(f"{start}*", count=1_000)), reverse=newest_first)
        for first in range(0, len(keys), READ_AT_ONCE):  # ids sort by age
            some = keys[first : first + READ_AT_ONCE]
            with self._redis.pipeline(transaction=False) as pipeline:
                for key in some:
                    pipeline.hmget(key, _FIELDS)
                answers = pipeline.execute()
            for key, values in zip(some, answers, strict=True):
                row = _row(key.removeprefix(start), values)
                if row is not None and (not statuses or row.status in statuses):
                    yield row

    def requeue(self, record: JobRecord) -> str:
        """Queue a failed job again, with all attempts before it. `REQUEUED`, or its status where it has not failed;
        'unknown' and 'newer_schema' as they say."""
        expires_ms = round((record.request.expires_in or 0) * 1_000)
        key = names.job_key(self._prefix, record.id)
        return str(self._scripts.run("revive", [key], *self._bounds, expires_ms, secrets.token_hex(8)))

    def forget(self, job_id: str, age_ms: int) -> bool:
        """Remove the record of a job that ended at least `age_ms` ago; False where it has not."""
        return bool(self._scripts.run("forget", [names.job_key(self._prefix, job_id)], age_ms))

    def now_ms(self) -> int:
        """By Redis's clock, as all times of records are."""
        seconds, microseconds = self._redis.time()
        return int(seconds * 1_000 + microseconds // 1_000)


def _row(job_id: str, values: Sequence[str | None]) -> Row | None:
    """None for a record that is gone by now, or of a version that this release does not know."""
    fields = {name: value for name, value in zip(_FIELDS, values, strict=True) if value is not None}
    if not is_readable(fields):
        return None
    return Row(
        id=job_id,
        status=Status(fields["status"]),
        queue=Queue(fields["queue"]),
        owner=fields["owner"],
        created_ms=int(fields["created_ms"]),
        finished_ms=int(fields["finished_ms"]) if "finished_ms" in fields else None,
        attempts=int(fields["attempts"]),
        error=str(json.loads(fields["error"])["type"]) if "error" in fields else None,
    )
