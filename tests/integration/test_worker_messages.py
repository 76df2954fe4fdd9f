"""What a broker may deliver: the same id many times, ids that nobody knows, and plain garbage."""

from __future__ import annotations

import base64
import json
import uuid
from pathlib import Path

from servers import wait_until
from workers import Desk, assert_speaks, run_worker

from worker.jobs.broker import publish
from worker.jobs.models import Queue, Status
from worker.jobs.names import TASK_NAME, broker_prefix, message_list_key, new_job_id


def envelope(
    body: bytes,
    *,
    task: str | None = TASK_NAME,
    content_type: str = "application/json",
    encoding: str | None = "base64",
) -> str:
    """A message as kombu stores it in its list."""
    headers = {"id": str(uuid.uuid4()), "lang": "py", "root_id": None, "parent_id": None, "argsrepr": "", "eta": None}
    message = {
        "body": base64.b64encode(body).decode(),
        "content-encoding": "utf-8",
        "content-type": content_type,
        "headers": headers | ({"task": task} if task else {}),
        "properties": {
            "correlation_id": headers["id"],
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": "interactive"},
            "priority": 0,
            "body_encoding": encoding,
            "delivery_tag": str(uuid.uuid4()),
        },
    }
    return json.dumps(message)


GARBAGE = {
    "not JSON": "\x00\x01 garbage",
    "JSON, no message": json.dumps({"hello": "world"}),
    "a list": "[1, 2]",
    "a pickle": envelope(b"\x80\x04N.", content_type="application/x-python-serialize"),
    "an unknown content type": envelope(b"?", content_type="text/vnd.nobody"),
    "a body that is not JSON": envelope(b"{{{{"),
    "a body that is no call": envelope(b"42"),
    "a body of the wrong shape": envelope(json.dumps([[["nested"]], {}, {}]).encode()),
    "a call without arguments": envelope(json.dumps([[], {}, {}]).encode()),
    "a call with a number": envelope(json.dumps([[7], {}, {}]).encode()),
    "a call with keywords": envelope(json.dumps([[], {"job_id": "x"}, {}]).encode()),
    "a call of a later release": envelope(
        json.dumps([[new_job_id(), {"v": 2}], {"trace": "x"}, {"later": 1}]).encode()
    ),
    "an id of another shape": envelope(json.dumps([["../../etc"], {}, {}]).encode()),
    "an unknown task": envelope(json.dumps([[], {}, {}]).encode(), task="os.system"),
    "no task": envelope(json.dumps([[], {}, {}]).encode(), task=None),
    "a body in no encoding": envelope(b"x", encoding="rot13"),
}


def test_same_id_fifty_times_is_one_result(desk: Desk, environment: dict[str, str], tmp_path: Path) -> None:
    with run_worker(environment, tmp_path / "worker.log", tone_window_ms=300) as worker:
        job_id = desk.submit("Only once.")
        for _ in range(49):
            assert publish(desk.celery, job_id, Queue.INTERACTIVE)
        [record] = desk.wait_ended([job_id])
        refusals = [f"nothing to do: {reason}" for reason in ("leased", "ended")]
        wait_until(lambda: sum(line["event"] in refusals for line in worker.lines()) == 49, what="49 refused messages")
    assert record.attempts == 1
    assert_speaks(desk.audio(record), "Only once.")
    assert len(desk.audio_keys()) == 1


def test_unknown_and_ended_ids_disturb_nothing(desk: Desk, environment: dict[str, str], tmp_path: Path) -> None:
    with run_worker(environment, tmp_path / "worker.log") as worker:
        done = desk.submit("Done already.")
        [before] = desk.wait_ended([done])
        for job_id in (new_job_id(), done):
            publish(desk.celery, job_id, Queue.BULK)
        wait_until(lambda: worker.has_logged("nothing to do: unknown"), what="the unknown id")
        wait_until(lambda: worker.has_logged("nothing to do: ended"), what="the ended id")
    assert desk.record(done) == before


def test_a_job_that_ends_without_work_is_told_as_one(desk: Desk, environment: dict[str, str], tmp_path: Path) -> None:
    """It was lost with its worker as often as may be: a warning, with what its other lines name."""
    poison = desk.submit("I end every worker.")
    desk.redis.hset(f"{desk.settings.redis_prefix}:job:{poison}", "attempts", desk.settings.max_attempts)
    with run_worker(environment, tmp_path / "worker.log") as worker:
        [record] = desk.wait_ended([poison])
        wait_until(lambda: worker.has_logged("ended without work: poison"), what="the line about it")
        [line] = [line for line in worker.lines() if line["event"] == "ended without work: poison"]
    assert record.error is not None
    assert record.error.type == "poison"
    assert (line["level"], line["job"], line["attempt"]) == ("warning", poison, desk.settings.max_attempts)


def test_job_of_a_later_release_is_left_to_its_workers(desk: Desk, environment: dict[str, str], tmp_path: Path) -> None:
    later = desk.submit("I am of tomorrow.")
    key = f"{desk.settings.redis_prefix}:job:{later}"
    desk.redis.hset(key, "schema", 1_000)
    before = desk.redis.hgetall(key)
    with run_worker(environment, tmp_path / "worker.log") as worker:
        wait_until(lambda: worker.has_logged("nothing to do: newer_schema"), what="its refusal")
        [record] = desk.wait_ended([desk.submit("I am of today.")])
        assert_speaks(desk.audio(record), "I am of today.")
        assert desk.redis.hgetall(key) == before


def test_garbage_does_not_stop_the_consumer(desk: Desk, environment: dict[str, str], tmp_path: Path) -> None:
    queue = message_list_key(desk.settings.redis_prefix, "interactive")
    with run_worker(environment, tmp_path / "worker.log") as worker:
        for kind, garbage in GARBAGE.items():
            desk.redis.lpush(queue, garbage)
            [record] = desk.wait_ended([desk.submit(f"After {kind}.")], 10)
            assert record.status is Status.SUCCEEDED, kind
            assert_speaks(desk.audio(record), f"After {kind}.")
        assert worker.process.poll() is None
        unacknowledged = broker_prefix(desk.settings.redis_prefix) + "unacked"
        wait_until(lambda: desk.redis.hlen(unacknowledged) == 0, what="the acknowledgement of all messages")
        assert desk.redis.llen(queue) == 0
