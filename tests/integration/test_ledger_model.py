"""The Lua scripts against a plain model: any sequence of calls, time passing at any moment (Hypothesis)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    MultipleResults,
    RuleBasedStateMachine,
    consumes,
    invariant,
    multiple,
    rule,
    run_state_machine_as_test,
)
from job_examples import FAILURE, new_job, result_of
from redis import Redis

from worker.jobs import names
from worker.jobs.errors import QueueFull
from worker.jobs.ledger import CancelOutcome, Claim, Hold, JobRecord, Ledger, RefusalReason
from worker.jobs.models import Queue, Status
from worker.jobs.settings import Settings

MAX_ATTEMPTS = 2
MAX_QUEUE = 6
MAX_PUBLISHED = 2
REFERENCE = "references/shared-by-all"


@dataclass
class Model:
    """What a job should be. `lease` is None, "live" or "lapsed"; not `published` while its id waits for room."""

    published: bool
    status: Status = Status.QUEUED
    token: int = 0
    attempts: int = 0
    lease: str | None = None
    counted: bool = False
    cancel: bool = False
    expired: bool = False

    def finish(self, status: Status) -> None:
        self.status, self.lease = status, None

    def requeue(self) -> None:
        self.status, self.lease, self.counted, self.token = Status.QUEUED, None, False, self.token + 1

    def is_held_by(self, claim: Claim) -> bool:
        return not self.status.is_final and self.lease is not None and self.token == claim.token


class LedgerMachine(RuleBasedStateMachine):
    """Leases last for hours here; time passes by the rules `let_lapse` and `let_expire`, which edit the record.

    `messages` are the ids in the broker's list, the next one first. Any that a process publishes may get lost on the
    way there, and `reconcile` begins with the loss of all. `line` are the ids that wait for room, those included for
    which nobody waits any more.
    """

    jobs: Bundle[str] = Bundle("jobs")
    claims: Bundle[Claim] = Bundle("claims")

    def __init__(self, redis: Redis, prefix: str) -> None:
        super().__init__()
        self.redis, self.prefix = redis, prefix
        for key in redis.scan_iter(f"{prefix}:*"):
            redis.delete(key)
        self.ledger = Ledger(redis, Settings(redis_prefix=prefix, max_attempts=MAX_ATTEMPTS, max_queue=MAX_QUEUE,
                                             max_published=MAX_PUBLISHED, lease_seconds=3600))  # fmt: skip
        self.list_key = names.message_list_key(prefix, Queue.INTERACTIVE.value)
        self.messages: list[str] = []
        self.line: list[str] = []
        self.models: dict[str, Model] = {}
        self.endings: dict[str, Any] = {}

    def key(self, job_id: str) -> str:
        return names.job_key(self.prefix, job_id)

    def unfinished(self) -> set[str]:
        return {job_id for job_id, model in self.models.items() if not model.status.is_final}

    def waits_in_line(self, job_id: str) -> bool:
        return job_id in self.unfinished() and not self.models[job_id].published

    def publish_from_line(self, limit: int) -> int:
        """What the ledger should do by itself; how many ids it is."""
        num_published = 0
        while self.line and num_published < limit and len(self.messages) < MAX_PUBLISHED:
            if self.waits_in_line(job_id := self.line.pop(0)):
                self.models[job_id].published = True
                self.messages.append(job_id)
                num_published += 1
        return num_published

    def publish_first(self, job_id: str, is_lost: bool) -> None:
        """As workers do it."""
        if not is_lost:
            self.messages.insert(0, job_id)
            self.redis.rpush(self.list_key, job_id)

    def lose(self, num_messages: int) -> list[str]:
        """The next messages leave the broker's list."""
        lost, self.messages = self.messages[:num_messages], self.messages[num_messages:]
        for job_id in lost:
            assert job_id in self.redis.rpop(self.list_key)
        return lost

    @rule(target=jobs, is_lost=st.booleans())
    def submit(self, is_lost: bool) -> str:
        new = replace(new_job(), reference_key=REFERENCE)
        full = len(self.unfinished()) >= MAX_QUEUE
        if full:
            with pytest.raises(QueueFull):
                self.ledger.submit(new)
            return new.id
        while self.line and not self.waits_in_line(self.line[0]):
            self.line.pop(0)
        has_room = not self.line and len(self.messages) < MAX_PUBLISHED
        record, _ = self.ledger.submit(new)
        assert record.is_published is has_room
        self.models[new.id] = Model(has_room)
        if has_room and is_lost:
            assert new.id in self.redis.lpop(self.list_key)
        elif has_room:
            self.messages.append(new.id)
        else:
            self.line.append(new.id)
        return new.id

    @rule(target=claims, job_id=jobs)
    def claim(self, job_id: str) -> Claim:
        """By a message that came from anywhere."""
        model, answer = self.models.get(job_id), self.ledger.claim(job_id, "worker")
        if model:
            model.published = model.published or not model.status.is_final
            self.publish_from_line(2)
        expected = self.expected_refusal(model)
        if expected is None:
            assert model is not None
            assert isinstance(answer, Claim), answer
            model.requeue()
            model.lease = "live"
            assert (answer.token, answer.attempts) == (model.token, model.attempts)
            return answer
        assert not isinstance(answer, Claim)
        assert answer.reason is expected
        return Claim(job_id, 0, 0, new_job().request, None, 0.0, 0, Queue.INTERACTIVE)  # a holder of nothing

    @rule(target=claims)
    def take(self) -> Claim | MultipleResults[Claim]:
        """A job whose turn it is."""
        taken = self.lose(1)
        return self.claim(taken[0]) if taken else multiple()

    def expected_refusal(self, model: Model | None) -> RefusalReason | None:
        if model is None:
            return RefusalReason.UNKNOWN
        if model.status.is_final:
            return RefusalReason.ENDED
        if model.lease == "live":
            return RefusalReason.LEASED
        if model.cancel:
            model.finish(Status.CANCELLED)
            return RefusalReason.ENDED
        if model.attempts >= MAX_ATTEMPTS:
            model.finish(Status.FAILED)
            return RefusalReason.POISON
        if model.expired:
            model.finish(Status.EXPIRED)
            return RefusalReason.EXPIRED
        return None

    @rule(claim=claims)
    def start(self, claim: Claim) -> None:
        model = self.models.get(claim.id)
        held = model is not None and model.is_held_by(claim)
        if model and held and (model.cancel or (model.expired and not model.counted)):
            model.finish(Status.CANCELLED if model.cancel else Status.EXPIRED)
            held = False
        assert self.ledger.start([claim]) == [held]
        if model and held:
            model.attempts += not model.counted
            model.status, model.counted, model.lease = Status.RUNNING, True, "live"

    @rule(claim=claims)
    def pause(self, claim: Claim) -> None:
        model = self.models.get(claim.id)
        held = model is not None and model.is_held_by(claim)
        assert self.ledger.pause(claim) is held
        if model and held and model.counted:
            model.status, model.counted, model.attempts = Status.QUEUED, False, model.attempts - 1

    @rule(claim=claims)
    def heartbeat(self, claim: Claim) -> None:
        model = self.models.get(claim.id)
        expected = Hold.LOST
        if model and model.token == claim.token and model.status is Status.CANCELLED:
            expected = Hold.CANCELLED
        elif model and model.is_held_by(claim):
            expected, model.lease = (Hold.CANCELLED if model.cancel else Hold.HELD), "live"
        assert self.ledger.heartbeat([claim]) == {claim.id: expected}

    @rule(claim=consumes(claims), give_back=st.booleans())
    def hand_back(self, claim: Claim, give_back: bool) -> None:
        model = self.models.get(claim.id)
        held = model is not None and model.is_held_by(claim)
        if give_back:
            self.ledger.release([claim])
        else:
            assert self.ledger.retry(claim, 0) is (held and not model.cancel)
        if model and held:
            if model.cancel:
                model.finish(Status.CANCELLED)
                return
            model.attempts -= give_back and model.counted
            model.requeue()

    @rule(claim=claims, status=st.sampled_from([Status.SUCCEEDED, Status.FAILED, Status.CANCELLED]))
    def finish(self, claim: Claim, status: Status) -> None:
        model = self.models.get(claim.id)
        done = (
            self.ledger.complete(claim, result_of(claim))
            if status is Status.SUCCEEDED
            else self.ledger.end(claim, status, FAILURE if status is Status.FAILED else None)
        )
        if model is None or not model.is_held_by(claim):
            repeated = model is not None and model.status is status and model.token == claim.token
            assert done is repeated
        elif model.cancel:
            model.finish(Status.CANCELLED)
            assert done is (status is Status.CANCELLED)
        else:
            allowed = status is not Status.SUCCEEDED or model.status is Status.RUNNING
            assert done is allowed
            if allowed:
                model.finish(status)

    @rule(job_id=jobs)
    def cancel(self, job_id: str) -> None:
        model, outcome = self.models.get(job_id), self.ledger.cancel(job_id)
        if model is None:
            assert outcome is CancelOutcome.UNKNOWN
        elif model.status.is_final:
            assert outcome is CancelOutcome.ENDED
        elif model.status is Status.RUNNING and model.lease == "live":
            assert outcome is CancelOutcome.CANCELLING
            model.cancel = True
        else:
            assert outcome is CancelOutcome.CANCELLED
            model.finish(Status.CANCELLED)

    @rule(job_id=jobs)
    def let_lapse(self, job_id: str) -> None:
        if (model := self.models.get(job_id)) and model.lease == "live":
            self.redis.hset(self.key(job_id), "lease_ms", 1)
            self.redis.zadd(names.leases_key(self.prefix, Queue.INTERACTIVE.value), {job_id: 1})
            model.lease = "lapsed"

    @rule(job_id=jobs)
    def let_expire(self, job_id: str) -> None:
        if (model := self.models.get(job_id)) and not model.status.is_final:
            self.redis.hset(self.key(job_id), "expires_ms", 1)
            model.expired = True

    @rule(is_lost=st.booleans())
    def reconcile(self, is_lost: bool) -> None:
        self.lose(len(self.messages))
        due = names.due_key(self.prefix, Queue.INTERACTIVE.value)
        for job_id in self.redis.zrange(due, 0, -1):
            self.redis.zadd(due, {job_id: 0})
        expected = set()
        for job_id in self.unfinished():
            model = self.models[job_id]
            if model.lease == "live":
                continue
            if model.cancel:
                model.finish(Status.CANCELLED)
            elif model.expired:
                model.finish(Status.EXPIRED)
            elif model.published:
                expected.add(job_id)
                if model.lease == "lapsed":
                    model.requeue()
        found = self.ledger.overdue()
        assert len(found) == len(set(found))
        assert {job_id for job_id, _ in found} == expected
        for job_id, _ in found:
            self.publish_first(job_id, is_lost)
        assert self.ledger.refill() == self.publish_from_line(500)

    def teardown(self) -> None:
        """Once nothing gets lost any more, every job comes to its end."""
        for job_id in self.models:
            self.let_lapse(job_id)
        for _ in range(2 * MAX_QUEUE):
            self.reconcile(is_lost=False)
            while taken := self.lose(1):
                self.finish(self.claim(taken[0]), Status.FAILED)
        assert not self.unfinished()

    @invariant()
    def lists_are_as_the_model_says(self) -> None:
        line = names.unpublished_key(self.prefix, Queue.INTERACTIVE.value)
        assert self.redis.lrange(line, 0, -1) == self.line
        messages = reversed(self.redis.lrange(self.list_key, 0, -1))
        assert all(job_id in message for job_id, message in zip(self.messages, messages, strict=True))

    @invariant()
    def reference_is_used_by_the_unfinished(self) -> None:
        assert self.redis.smembers(names.reference_users_key(self.prefix, REFERENCE)) == self.unfinished()
        assert self.ledger.used_references([REFERENCE]) == ({REFERENCE} if self.unfinished() else set())

    @invariant()
    def records_are_as_the_model_says(self) -> None:
        due = set(self.redis.zrange(names.due_key(self.prefix, Queue.INTERACTIVE.value), 0, -1))
        leased = set(self.redis.zrange(names.leases_key(self.prefix, Queue.INTERACTIVE.value), 0, -1))
        assert leased == {job_id for job_id, model in self.models.items() if model.lease is not None}
        assert due == self.unfinished() - leased
        for job_id, model in self.models.items():
            fields = self.redis.hgetall(self.key(job_id))
            seen = (fields["status"], int(fields["token"]), int(fields["attempts"]), "lease_ms" in fields)
            assert seen == (model.status, model.token, model.attempts, model.lease is not None)
            assert model.attempts <= MAX_ATTEMPTS
            if not model.status.is_final:
                assert JobRecord.from_hash(fields).is_published is model.published
            assert ("result" in fields) == (model.status is Status.SUCCEEDED)
            if model.status.is_final:
                assert self.endings.setdefault(job_id, fields) == fields


def test_the_scripts_agree_with_the_model(redis_client: Redis, redis_settings: Settings) -> None:
    run_state_machine_as_test(
        lambda: LedgerMachine(redis_client, redis_settings.redis_prefix),
        settings=settings(
            max_examples=80,
            stateful_step_count=30,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
