"""Jobs beyond the bound up to which ids are published: they wait in the ledger; none is lost there or passed over."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace

import pytest
from job_examples import FAILURE, claimed, new_job, running, submitted
from redis import Redis
from servers import wait_until

from worker.jobs import names
from worker.jobs.broker import make_celery, publish
from worker.jobs.catalogue import Catalogue
from worker.jobs.ledger import CancelOutcome, Ledger, Refusal, RefusalReason
from worker.jobs.models import Queue, Status
from worker.jobs.settings import Settings

BOUND = 2


class Broker:
    """The broker's list: messages are published behind the others and taken from the front."""

    def __init__(self, redis: Redis, settings: Settings) -> None:
        self.redis, self.settings = redis, settings
        self.ledger = Ledger(redis, settings)

    def submit(self, **body: object) -> str:
        """As the API does it."""
        record, _ = self.ledger.submit(new_job(**body))
        return record.id

    def waiting(self, queue: Queue = Queue.INTERACTIVE) -> list[str]:
        """The ids of the messages, the next one first."""
        messages = self.redis.lrange(names.message_list_key(self.settings.redis_prefix, queue.value), 0, -1)
        return [id_in(message) for message in reversed(messages)]

    def take(self, queue: Queue = Queue.INTERACTIVE) -> str:
        """The next message leaves the list: its job's id."""
        return id_in(self.redis.rpop(names.message_list_key(self.settings.redis_prefix, queue.value)))

    def work(self, queue: Queue = Queue.INTERACTIVE) -> str:
        """As a worker does it, up to the claim; the job's id."""
        job_id = self.take(queue)
        self.ledger.claim(job_id, "worker")
        return job_id

    def lose_all(self) -> None:
        for queue in Queue:
            self.redis.delete(names.message_list_key(self.settings.redis_prefix, queue.value))

    def let_all_be_due(self) -> None:
        """As if the time had come at which the reconciler looks at each waiting job."""
        due = names.due_key(self.settings.redis_prefix, "interactive")
        for job_id in self.redis.zrange(due, 0, -1):
            self.redis.zadd(due, {job_id: 0})


@pytest.fixture
def patient(redis_settings: Settings) -> Settings:
    """Leases that do not lapse while a busy machine takes its time."""
    return redis_settings.model_copy(update={"lease_seconds": 60.0, "max_published": BOUND})


@pytest.fixture
def broker(redis_client: Redis, patient: Settings) -> Broker:
    return Broker(redis_client, patient)


def test_no_more_than_the_bound_is_published_and_all_are_counted(broker: Broker) -> None:
    ids = [broker.submit() for _ in range(5)]
    bulk = broker.submit(queue="bulk")
    records = [broker.ledger.get(job_id) for job_id in ids]
    assert [record.is_published for record in records if record] == [True, True, False, False, False]
    assert broker.waiting() == ids[:BOUND]
    assert broker.waiting(Queue.BULK) == [bulk], "each queue has a bound of its own"
    assert broker.ledger.depth() == {Queue.INTERACTIVE: 5, Queue.BULK: 1}
    stats = broker.ledger.stats()[Queue.INTERACTIVE]
    assert (stats.num_waiting, stats.num_leased, stats.submitted) == (5, 0, 5)


def test_each_message_that_is_taken_makes_room_in_the_order_of_submission(broker: Broker) -> None:
    ids = [broker.submit() for _ in range(5)]
    for index, job_id in enumerate(ids):
        assert broker.work() == job_id
        assert broker.waiting() == ids[index + 1 : index + 1 + BOUND]
    late = broker.submit()
    assert broker.waiting() == [late], "nobody waits before it any more"


def test_a_new_job_does_not_pass_those_that_wait(broker: Broker) -> None:
    ids = [broker.submit() for _ in range(BOUND + 1)]
    broker.lose_all()  # there is room in the list, which nobody has used yet
    ids.append(broker.submit())
    assert broker.ledger.refill() == BOUND
    assert broker.waiting() == ids[BOUND:]


def test_too_few_messages_become_as_many_as_the_bound_again(redis_client: Redis, patient: Settings) -> None:
    broker = Broker(redis_client, patient.model_copy(update={"max_published": 4}))
    for _ in range(16):
        broker.submit()
    for _ in range(3):
        broker.take()  # and are lost with their worker
    sizes = []
    for _ in range(4):
        broker.work()
        sizes.append(len(broker.waiting()))
    assert sizes == [2, 3, 4, 4]


def test_an_end_in_the_waiting_list_is_passed_over(broker: Broker) -> None:
    ids = [broker.submit() for _ in range(BOUND)]
    doomed, expiring, living = broker.submit(), broker.submit(expires_in=0.001), broker.submit()
    assert broker.ledger.cancel(doomed) is CancelOutcome.CANCELLED

    def has_expired() -> bool:
        broker.ledger.overdue()
        record = broker.ledger.get(expiring)
        return record is not None and record.status is Status.EXPIRED

    wait_until(has_expired, 5, "the end of a job that nobody was told of")
    assert broker.ledger.depth()[Queue.INTERACTIVE] == 3
    assert broker.work() == ids[0]
    assert broker.waiting() == [ids[1], living]


def test_nothing_waits_behind_ids_of_jobs_that_have_ended(broker: Broker, redis_client: Redis) -> None:
    ids = [broker.submit() for _ in range(BOUND + 3)]
    for job_id in ids:
        broker.ledger.cancel(job_id)
    broker.lose_all()
    redis_client.delete(names.job_key(broker.settings.redis_prefix, ids[-1]))  # purged
    assert broker.ledger.get(broker.submit()).is_published


def test_a_message_from_the_list_that_is_lost_is_overdue_and_goes_first(broker: Broker) -> None:
    ids = [broker.submit() for _ in range(BOUND + 2)]
    assert [broker.work() for _ in range(BOUND)] == ids[:BOUND]
    assert broker.take() == ids[BOUND]  # and its worker dies
    broker.let_all_be_due()
    assert broker.ledger.overdue() == [], "nothing tells yet that it is gone"
    broker.work()
    broker.let_all_be_due()
    assert broker.ledger.overdue() == [(ids[BOUND], Queue.INTERACTIVE)]


def test_of_those_that_were_taken_together_none_is_lost_because_another_was_claimed(broker: Broker) -> None:
    ids = [broker.submit() for _ in range(2 * BOUND)]
    broker.lose_all()
    assert broker.ledger.refill() == BOUND
    assert broker.work() == ids[BOUND]
    broker.redis.zadd(names.due_key(broker.settings.redis_prefix, "interactive"), {broker.waiting()[0]: 0})
    assert broker.ledger.overdue() == []


def test_those_that_wait_are_not_announced_though_there_is_no_message(broker: Broker) -> None:
    ids = [broker.submit() for _ in range(BOUND + 3)]
    broker.lose_all()
    broker.let_all_be_due()
    assert broker.ledger.overdue() == [(job_id, Queue.INTERACTIVE) for job_id in sorted(ids[:BOUND])]
    assert broker.ledger.refill() == BOUND
    assert broker.waiting() == ids[BOUND : 2 * BOUND]


def test_those_whose_list_was_removed_are_found(broker: Broker, redis_client: Redis) -> None:
    ids = {broker.submit() for _ in range(BOUND + 3)} - set(broker.waiting())
    redis_client.delete(names.unpublished_key(broker.settings.redis_prefix, "interactive"))
    broker.let_all_be_due()
    assert {job_id for job_id, _ in broker.ledger.overdue()} == ids
    broker.let_all_be_due()
    assert broker.ledger.overdue() == []


def test_one_that_is_claimed_all_the_same_is_an_ordinary_job(broker: Broker) -> None:
    """By a message that came twice, or from a release that knows no bound."""
    for _ in range(BOUND):
        broker.submit()
    odd = broker.submit()
    claim = running(broker.ledger, odd)
    broker.ledger.release([claim])
    assert broker.ledger.get(odd).is_published
    broker.lose_all()
    broker.let_all_be_due()
    assert (odd, Queue.INTERACTIVE) in broker.ledger.overdue()
    assert broker.ledger.refill() == 0


def test_that_one_was_claimed_out_of_turn_says_nothing_of_the_others(broker: Broker) -> None:
    ids = [broker.submit() for _ in range(BOUND + 2)]
    claimed(broker.ledger, ids[-1])
    broker.let_all_be_due()
    assert broker.ledger.overdue() == []


def test_none_that_waits_its_turn_counts_as_announced_again(redis_client: Redis, patient: Settings) -> None:
    """However many came in one millisecond, within the bound and beyond it."""
    broker = Broker(redis_client, patient.model_copy(update={"max_published": 40}))
    for _ in range(60):
        broker.ledger.submit(new_job())
    for _ in range(59):
        broker.work()
        broker.let_all_be_due()
        assert broker.ledger.overdue() == []
    assert broker.ledger.stats()[Queue.INTERACTIVE].announced == 0


def now_ms(redis: Redis) -> int:
    seconds, microseconds = redis.time()
    return int(seconds) * 1000 + int(microseconds) // 1000


def test_of_those_that_were_put_first_none_is_lost_because_another_was_taken(
    redis_client: Redis, patient: Settings
) -> None:
    """The last put is the first taken: only a message from behind all of them tells that they are gone."""
    broker = Broker(redis_client, patient.model_copy(update={"max_published": 10}))
    ids = [broker.submit() for _ in range(5)]
    claims = [running(broker.ledger, broker.take()) for _ in range(3)]
    broker.ledger.release(claims, announces=True)
    for claim in claims:
        broker.redis.rpush(names.message_list_key(broker.settings.redis_prefix, "interactive"), claim.id)
    released_ms = now_ms(broker.redis)
    wait_until(lambda: now_ms(broker.redis) > released_ms, 1, "what is taken to be taken in a later one")
    assert broker.work() == ids[2]
    broker.let_all_be_due()
    assert broker.ledger.overdue() == []
    assert {broker.take(), broker.take()} == {*ids[:2]}  # and their worker dies
    assert broker.work() == ids[3]
    broker.let_all_be_due()
    assert {job_id for job_id, _ in broker.ledger.overdue()} == {*ids[:2]}
    assert broker.ledger.stats()[Queue.INTERACTIVE].announced == 2


def test_a_revived_job_takes_its_place_behind_the_others(broker: Broker, redis_client: Redis) -> None:
    failed = broker.submit()
    assert broker.ledger.end(running(broker.ledger, broker.take()), Status.FAILED, FAILURE)
    ids = [broker.submit() for _ in range(BOUND + 1)]
    catalogue = Catalogue(redis_client, broker.settings)
    assert catalogue.requeue(broker.ledger.get(failed)) == "requeued"
    assert not broker.ledger.get(failed).is_published
    assert [broker.work() for _ in range(BOUND + 2)] == [*ids, failed]


def test_a_handed_back_job_goes_before_those_that_wait(broker: Broker) -> None:
    for _ in range(BOUND + 2):
        broker.submit()
    claim = running(broker.ledger, broker.take())
    broker.ledger.release([claim], announces=True)
    broker.redis.rpush(names.message_list_key(broker.settings.redis_prefix, "interactive"), claim.id)
    assert broker.work() == claim.id


def test_a_submission_whose_answer_was_lost_keeps_its_place(broker: Broker) -> None:
    for _ in range(BOUND):
        broker.submit()
    new = new_job()
    first, second = broker.ledger.submit(new), broker.ledger.submit(replace(new))
    assert first == second
    assert broker.redis.llen(names.unpublished_key(broker.settings.redis_prefix, "interactive")) == 1


def test_refusals_make_room_too(broker: Broker) -> None:
    ids = [broker.submit() for _ in range(BOUND + 1)]
    broker.ledger.cancel(ids[0])
    assert broker.ledger.claim(broker.take(), "worker") == Refusal(ids[0], RefusalReason.ENDED)
    assert broker.waiting() == ids[1:]


def test_a_newer_releases_job_in_the_list_is_told_of_and_left_alone(broker: Broker, redis_client: Redis) -> None:
    for _ in range(BOUND):
        broker.submit()
    newer = broker.submit()
    key = names.job_key(broker.settings.redis_prefix, newer)
    redis_client.hset(key, mapping={"schema": 99, "status": "awaiting-the-moon"})
    before = redis_client.hgetall(key)
    broker.work()
    assert newer in broker.waiting()
    assert redis_client.hgetall(key) == before


def test_a_long_list_costs_the_reconciler_little(broker: Broker, redis_client: Redis) -> None:
    """Its jobs are not looked at in each round, as those are whose message may have been lost."""
    for _ in range(BOUND):
        broker.submit()
    waiting = submitted(broker.ledger)
    [score] = redis_client.zmscore(names.due_key(broker.settings.redis_prefix, "interactive"), [waiting])
    assert score > (time.time() + 10 * broker.settings.lease_seconds) * 1_000


def test_a_message_from_the_list_is_like_one_of_celerys(broker: Broker, redis_client: Redis) -> None:
    """But for its body, which is not encoded: what lies in one lies in the other, and no two have a name in common."""
    app = make_celery(broker.settings)
    for _ in range(BOUND + 2):
        broker.submit(queue="bulk")
    broker.lose_all()
    assert broker.ledger.refill() == BOUND
    published = broker.submit()
    assert publish(app, published, Queue.BULK)
    app.close()
    key = names.message_list_key(broker.settings.redis_prefix, "bulk")
    theirs, *ours = (json.loads(message) for message in redis_client.lrange(key, 0, -1))
    for message in ours:
        assert message["headers"].keys() == theirs["headers"].keys()
        assert message["properties"].keys() == theirs["properties"].keys()
        assert message["properties"]["delivery_info"] == theirs["properties"]["delivery_info"]
        [[job_id], keywords, _] = json.loads(message["body"])
        assert names.is_job_id(job_id)
        assert keywords == {}
        assert "_ID" not in json.dumps(message)
    for part, name in (("headers", "id"), ("properties", "correlation_id"), ("properties", "delivery_tag")):
        assert len({message[part][name] for message in (theirs, *ours)}) == BOUND + 1


def id_in(message: str) -> str:
    found = re.search(r"job_[0-9a-f]{32}", message)
    assert found is not None, message
    return found[0]
