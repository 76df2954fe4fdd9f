"""The ledger in numbers: what waits, for how long, and what has happened since it began."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from redis import Redis

from worker.jobs import names
from worker.jobs.models import Queue, Status


@dataclass(frozen=True, slots=True)
class QueueStats:
    """One queue. `oldest_seconds` is the age of its oldest unfinished job, None where there is none.

    The totals only grow. `attempts` are those of jobs that have ended; `announced` counts messages that
    a reconciler had to send again; `lapsed` leases ended without a word of their
    worker; `poison` jobs were lost with it in each of their attempts;
    `requeued` ones had failed, and an operator queued them again: they end once more.
    """

    num_waiting: int
    num_leased: int
    oldest_seconds: float | None
    submitted: int
    ended: Mapping[Status, int]
    attempts: int
    retried: int
    announced: int
    lapsed: int
    poison: int
    requeued: int


LedgerStats = Mapping[Queue, QueueStats]


def read_stats(redis: Redis, prefix: str) -> LedgerStats:
    """One round trip, whose cost does not depend on how many jobs there are."""
    with redis.pipeline(transaction=False) as pipeline:
        pipeline.time()
        pipeline.hgetall(names.totals_key(prefix))
        for queue in Queue:
            pipeline.zcard(names.due_key(prefix, queue.value))
            pipeline.zcard(names.leases_key(prefix, queue.value))
            pipeline.zrange(names.ages_key(prefix, queue.value), 0, 0, withscores=True)
        (seconds, microseconds), totals, *answers = pipeline.execute()
    now = seconds + microseconds / 1_000_000
    return {
        queue: _queue_stats(queue, totals, now, *answers[3 * place : 3 * place + 3])
        for place, queue in enumerate(Queue)
    }


def _queue_stats(
    queue: Queue,
    totals: Mapping[str, str],
    now: float,
    num_waiting: int,
    num_leased: int,
    oldest: list[tuple[str, float]],
) -> QueueStats:
    def total(what: str) -> int:
        return int(totals.get(f"{what}:{queue.value}", 0))

    return QueueStats(
        num_waiting=num_waiting,
        num_leased=num_leased,
        oldest_seconds=max(0.0, now - oldest[0][1] / 1_000) if oldest else None,
        submitted=total("submitted"),
        ended={status: total(f"ended:{status.value}") for status in Status if status.is_final},
        attempts=total("attempts"),
        retried=total("retried"),
        announced=total("announced"),
        lapsed=total("lapsed"),
        poison=total("poison"),
        requeued=total("requeued"),
    )
