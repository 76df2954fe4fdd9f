"""The ledger: the one truth about every job, in Redis.

A job's record and its entry in the set of waiting jobs are written together, before anything is announced. From then
on each change is one Lua script by Redis's clock: a lease with a fencing token says who may work on the job, and only
the holder of the current token can end it. A script that ran but whose answer was lost may be repeated.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from typing import Any

from pydantic import ValidationError
from redis import Redis
from redis.client import PubSub
from redis.exceptions import RedisError

from worker.jobs import names
from worker.jobs.broker import message_template
from worker.jobs.connection import connect, connect_to_probe
from worker.jobs.errors import IdempotencyConflict, NewerRelease, QueueFull, QueueUnavailable
from worker.jobs.models import JobError, JobRequest, JobResult, Queue, Status
from worker.jobs.records import (
    POISON,
    UNREADABLE,
    CancelOutcome,
    Claim,
    Hold,
    JobRecord,
    NewJob,
    Refusal,
    RefusalReason,
    is_readable,
)
from worker.jobs.scripts import Scripts
from worker.jobs.settings import Settings
from worker.jobs.stats import LedgerStats, read_stats
from worker.jobs.tracing import trace_id_of

__all__ = ["CancelOutcome", "Claim", "Hold", "JobRecord", "Ledger", "NewJob", "Refusal", "RefusalReason"]

QUEUE_FULL_RETRY_SECONDS = 5

NextId = Callable[[float], str | None]
"""Waits up to so many seconds for the id that is told next. A hint, to look at once: who is not connected misses it."""


class Ledger:
    """Safe to share between threads. Every method raises `QueueUnavailable` when Redis cannot be used."""

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self._redis = redis
        self._settings = settings
        self._prefix = settings.redis_prefix
        self._max_queue = settings.max_queue
        self._max_published = settings.max_published
        self._message = message_template()
        self._max_attempts = settings.max_attempts
        self._lease_ms = round(settings.lease_seconds * 1000)
        self._retention_ms = round(settings.retention_hours * 3_600_000)
        self._scripts = Scripts(redis, self._prefix)

    @classmethod
    def from_settings(cls, settings: Settings) -> Ledger:
        """With a client of its own."""
        return cls(connect(settings), settings)

    # -- for the API ---------------------------------------------------------------------------------------------------

    def submit(self, new: NewJob) -> tuple[JobRecord, bool]:
        """Store a job; (record, False) where the owner's idempotency key already led to one with the same body.

        It is published in the same step. One whose record is not `is_published` finds enough messages waiting, and a
        later claim publishes it.
        Raises `IdempotencyConflict` for another body and `QueueFull`.
        """
        keys = [names.job_key(self._prefix, new.id)]
        if new.idempotency_key is not None:
            keys.append(names.idempotency_key(self._prefix, new.owner, new.idempotency_key))
        expires_ms = 0 if new.request.expires_in is None else max(1, round(new.request.expires_in * 1000))
        bounds = (self._max_queue, self._max_published, self._lease_ms, self._retention_ms, expires_ms)
        pairs = [part for pair in new.to_hash().items() for part in pair]
        with _redis_errors():
            outcome, *fields = self._scripts.run("submit", keys, *bounds, new.fingerprint, self._message, *pairs)
        if outcome == "conflict":
            raise IdempotencyConflict("this Idempotency-Key was used before, with another body")
        if outcome == "full":
            raise QueueFull(self._max_queue, QUEUE_FULL_RETRY_SECONDS)
        record = self._read(dict(zip(fields[::2], fields[1::2], strict=True)))
        return record, record.id == new.id

    def get(self, job_id: str) -> JobRecord | None:
        """The job, or None where there is none (never was, or its retention is over)."""
        with _redis_errors():
            fields: dict[Any, Any] = self._redis.hgetall(names.job_key(self._prefix, job_id))
        return self._read(fields) if fields else None

    def cancel(self, job_id: str) -> CancelOutcome:
        """End a job that is not running at once, mark one that runs; from then on it can only end as cancelled."""
        with _redis_errors():
            key = names.job_key(self._prefix, job_id)
            outcome = self._scripts.run("cancel", [key], self._retention_ms, secrets.token_hex(8))
        if outcome == "newer_schema":
            raise NewerRelease(f"{job_id} belongs to a newer release; ask an API of that release")
        return CancelOutcome(outcome)

    def endings(self) -> AbstractContextManager[NextId]:
        """Listen for jobs that end."""
        return self._listen(names.ended_channel(self._prefix))

    def cancels(self) -> AbstractContextManager[NextId]:
        """Listen for running jobs that are to be cancelled."""
        return self._listen(names.cancelled_channel(self._prefix))

    @contextmanager
    def _listen(self, channel: str) -> Iterator[NextId]:
        with _redis_errors():
            subscription: PubSub = self._redis.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        with closing(subscription), _redis_errors():
            subscription.subscribe(channel)

            def next_id(seconds: float) -> str | None:
                with _redis_errors():
                    message = subscription.get_message(timeout=seconds)
                return None if message is None else message["data"]

            yield next_id

    def depth(self) -> dict[Queue, int]:
        """Unfinished jobs of each queue, those that run included."""
        with _redis_errors(), self._redis.pipeline(transaction=True) as pipeline:
            for queue in Queue:
                pipeline.zcard(names.due_key(self._prefix, queue.value))
                pipeline.zcard(names.leases_key(self._prefix, queue.value))
            counts: list[int] = pipeline.execute()
        return {queue: counts[2 * i] + counts[2 * i + 1] for i, queue in enumerate(Queue)}

    def stats(self) -> LedgerStats:
        """What metrics are made of, in one round trip."""
        with _redis_errors():
            return read_stats(self._redis, self._prefix)

    def ping(self) -> None:
        """Return when Redis answers. It has `connection.PROBE_SECONDS`, on a connection made for this."""
        with _redis_errors(), connect_to_probe(self._settings) as redis:
            redis.ping()

    # -- for workers ---------------------------------------------------------------------------------------------------

    def claim(self, job_id: str, worker: str) -> Claim | Refusal:
        """Lease a job for `lease_seconds`; counts no attempt. Of any number of callers at once, one gets it.

        A job that is past `expires_in`, or has used up its attempts, ends here. What has waited for the room that its
        message left is published.
        """
        key = names.job_key(self._prefix, job_id)
        # The nonce tells a repeated call (whose first answer was lost) from a second worker.
        nonce = secrets.token_hex(8)
        limits = (self._lease_ms, self._max_attempts, self._retention_ms, self._max_published)
        with _redis_errors():
            outcome, *fields = self._scripts.run(
                "claim", [key], *limits, self._message, POISON.model_dump_json(), worker, nonce
            )
        if outcome != "claimed":
            return Refusal(job_id, RefusalReason(outcome))
        return self._read_claim(job_id, fields)

    def start(self, claims: Sequence[Claim]) -> list[bool]:
        """The window has closed: count an attempt and set each running. False where it is not to run."""
        with _redis_errors():
            started = self._for_each("start", claims, self._lease_ms, self._retention_ms)
        return [bool(runs) for runs in started]

    def pause(self, claim: Claim) -> bool:
        """Give the attempt back and keep the lease: the job waits for its `start` again. False where it is lost."""
        with _redis_errors():
            return bool(self._for_each("pause", [claim])[0])

    def heartbeat(self, claims: Sequence[Claim]) -> dict[str, Hold]:
        """Extend the leases; for each job whether it is still the caller's to work on."""
        with _redis_errors():
            holds = self._for_each("heartbeat", claims, self._lease_ms)
        return {claim.id: Hold(hold) for claim, hold in zip(claims, holds, strict=True)}

    def release(self, claims: Sequence[Claim], *, announces: bool = False) -> None:
        """Hand jobs back unharmed: an attempt that was counted is given back, and they are due now.

        A caller that then `announces` them itself, first in the list, has a lease's time before a reconciler does.
        """
        with _redis_errors():
            self._for_each("requeue", claims, 0, "give_back", self._retention_ms, self._lease_ms if announces else 0)

    def retry(self, claim: Claim, delay_seconds: float, *, announces: bool = False) -> bool:
        """Queue a job again, due after a delay; its attempt stays counted. False where the claim was lost.

        `announces` as in `release`.
        """
        delay_ms, announce_ms = round(delay_seconds * 1000), self._lease_ms if announces else 0
        with _redis_errors():
            return bool(self._for_each("requeue", [claim], delay_ms, "keep", self._retention_ms, announce_ms)[0])

    def complete(self, claim: Claim, result: JobResult, warnings: Iterable[str] = ()) -> bool:
        """End a running job as succeeded. False, and nothing of it is visible, where the claim was lost or cancelled.

        The audio must lie at `result.uri` before.
        """
        return self._finish(claim, Status.SUCCEEDED, warnings, "result", result.model_dump_json())

    def end(self, claim: Claim, status: Status, error: JobError | None = None, warnings: Iterable[str] = ()) -> bool:
        """End a job as failed, cancelled or expired. False where the claim was lost, or a cancel came first."""
        if status not in (Status.FAILED, Status.CANCELLED, Status.EXPIRED):
            raise ValueError(f"end() is for failed, cancelled and expired, not {status}")
        pairs = () if error is None else ("error", error.model_dump_json())
        return self._finish(claim, status, warnings, *pairs)

    def overdue(self, limit: int = 500, *, spares_leases: bool = False) -> list[tuple[str, Queue]]:
        """The reconciler's step: jobs to publish again, first in the list, at most `limit` looked at a queue.

        Their due time moves on in the same script, so of two reconcilers only one gets a job. Jobs whose lease has
        lapsed are queued again (a late holder is fenced off), unless it `spares_leases`; those past `expires_in` end as
        expired. A job whose message is still in the broker's list is left waiting.
        """
        bounds = (limit, self._lease_ms, self._retention_ms, int(spares_leases))
        found: list[tuple[str, Queue]] = []
        for queue in Queue:
            messages = names.message_list_key(self._prefix, queue.value)
            with _redis_errors():
                ids = self._scripts.run("overdue", [messages], queue.value, *bounds)
            found.extend((job_id, queue) for job_id in ids)
        return found

    def refill(self, limit: int = 500) -> int:
        """Publish what has waited for room among the messages, at most `limit` a queue; returns how many those were.

        Claims do that as well, one by one; this is for messages that no claim has followed, since they were lost.
        """
        num_published = 0
        for queue in Queue:
            messages = names.message_list_key(self._prefix, queue.value)
            bounds = (self._max_published, self._lease_ms, limit)
            with _redis_errors():
                num_published += self._scripts.run("refill", [messages], queue.value, self._message, *bounds)
        return num_published

    def data_name(self) -> str:
        """A name that stays the same for as long as Redis keeps its data."""
        key = names.data_key(self._prefix)
        with _redis_errors():
            self._redis.set(key, secrets.token_hex(8), nx=True)
            return str(self._redis.get(key))

    def up_seconds(self) -> int:
        """For how long Redis has been up."""
        with _redis_errors():
            return int(self._redis.info("server")["uptime_in_seconds"])

    # -- for the sweeper of objects -----------------------------------------------------------------------------------

    def known(self, job_ids: Iterable[str]) -> set[str]:
        """Those of the jobs that have a record."""
        return self._existing({job_id: names.job_key(self._prefix, job_id) for job_id in job_ids})

    def used_references(self, keys: Iterable[str]) -> set[str]:
        """Those of the reference clips' keys that an unfinished job names."""
        return self._existing({key: names.reference_users_key(self._prefix, key) for key in keys})

    def begin_sweep(self, seconds: float) -> str | None:
        """Where the next round goes on; None where it is not the caller's, since one began less than `seconds` ago."""
        turn, position = names.sweep_keys(self._prefix)
        with _redis_errors():
            if not self._redis.set(turn, "taken", nx=True, px=round(seconds * 1000)):
                return None
            return str(self._redis.get(position) or "")

    def note_sweep(self, position: str) -> None:
        with _redis_errors():
            self._redis.set(names.sweep_keys(self._prefix)[1], position)

    # -- inside --------------------------------------------------------------------------------------------------------

    def _existing(self, keys: Mapping[str, str]) -> set[str]:
        with _redis_errors(), self._redis.pipeline(transaction=False) as pipeline:
            for key in keys.values():
                pipeline.exists(key)
            return {name for name, exists in zip(keys, pipeline.execute(), strict=True) if exists}

    def _for_each(self, script: str, claims: Sequence[Claim], *args: str | int) -> list[Any]:
        calls = [(names.job_key(self._prefix, claim.id), (claim.token, *args)) for claim in claims]
        return self._scripts.run_each(script, calls)

    def _finish(self, claim: Claim, status: Status, warnings: Iterable[str], *pairs: str) -> bool:
        merged = json.dumps(list(dict.fromkeys((*claim.warnings, *warnings))))
        return self._run_finish(claim.id, claim.token, status, "warnings", merged, *pairs)

    def _run_finish(self, job_id: str, token: int, status: Status, *pairs: str) -> bool:
        key = names.job_key(self._prefix, job_id)
        with _redis_errors():
            return bool(self._scripts.run("finish", [key], token, status.value, self._retention_ms, *pairs))

    def _read(self, fields: Mapping[str, str]) -> JobRecord:
        if not is_readable(fields):
            raise NewerRelease(f"{fields['id']} belongs to a newer release; ask an API of that release")
        return JobRecord.from_hash(fields)

    def _read_claim(self, job_id: str, fields: Sequence[str]) -> Claim | Refusal:
        token, attempts, body, reference_key, estimate, created, revived, queue, warnings, traceparent = fields
        try:
            request = JobRequest.model_validate_json(body)
        except ValidationError:
            # Left alone it would come back for ever: claimed, raised, acknowledged, overdue.
            self._run_finish(job_id, int(token), Status.FAILED, "error", UNREADABLE.model_dump_json())
            return Refusal(job_id, RefusalReason.UNREADABLE)
        return Claim(
            id=job_id,
            token=int(token),
            attempts=int(attempts),
            request=request,
            reference_key=reference_key or None,
            estimate_seconds=float(estimate),
            queued_at_ms=int(revived or created),
            queue=Queue(queue),
            warnings=tuple(json.loads(warnings)),
            trace_id=trace_id_of(traceparent),
        )


@contextmanager
def _redis_errors() -> Iterator[None]:
    try:
        yield
    except RedisError as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise QueueUnavailable(f"Redis cannot be used: {text}") from error
