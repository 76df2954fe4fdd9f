"""A line of the worker's log: what it carries, and what never gets in."""

from __future__ import annotations

import json
import logging
import threading
from typing import Any

import pytest

from worker.jobs.outages import Outage
from worker.log_context import bound, current
from worker.logs import BrokerOutage, JsonLines, StandardError


def line(message: str = "hello", **extra: object) -> dict[str, Any]:
    record = logging.makeLogRecord({"name": "worker.test", "levelname": "INFO", "msg": message, **extra})
    text = JsonLines().format(record)
    assert "\n" not in text
    parsed: dict[str, Any] = json.loads(text)
    return parsed


def test_a_line_carries_what_its_thread_has_bound() -> None:
    with bound(job="job_1", attempt=2):
        with bound(window="win_1"):
            found = line(ms=1.5)
            assert (found["job"], found["attempt"], found["window"], found["ms"]) == ("job_1", 2, "win_1", 1.5)
        assert "window" not in line()
        assert line(job="job_2")["job"] == "job_2", "the call's own field counts"
    assert "job" not in line()


def test_other_threads_have_fields_of_their_own() -> None:
    seen: list[object] = []
    with bound(job="job_1"):
        other = threading.Thread(target=lambda: seen.append(dict(current())))
        other.start()
        other.join()
    assert seen == [{}]


def test_only_known_fields_are_written_and_no_empty_ones() -> None:
    found = line("two\nlines", text="what a client wrote", trace_id=None)
    assert found["event"] == "two\nlines"
    assert not {"text", "trace_id"} & set(found)


def test_lines_of_threads_at_once_are_whole(capfd: pytest.CaptureFixture[str]) -> None:
    handler = StandardError()
    handler.setFormatter(JsonLines())
    logger = logging.Logger("worker.test")
    logger.addHandler(handler)
    num_threads, num_each = 8, 200

    def write(number: int) -> None:
        for index in range(num_each):
            logger.info("ä" * 500, extra={"job": f"{number}/{index}"})

    threads = [threading.Thread(target=write, args=[number]) for number in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    written = [json.loads(text) for text in capfd.readouterr().err.splitlines()]
    assert {found["event"] for found in written} == {"ä" * 500}
    expected = {f"{number}/{index}" for number in range(num_threads) for index in range(num_each)}
    assert sorted(found["job"] for found in written) == sorted(expected)


def test_celerys_attempts_to_reach_the_broker_are_one_line_of_an_outage() -> None:
    told = "consumer: Cannot connect to %s: %s.\n%s\n"
    record = logging.makeLogRecord({"msg": told, "args": ("redis://:**@here/0", "refused", "Trying again…")})
    assert BrokerOutage().filter(record)
    assert record.getMessage() == (
        "no message is taken until Redis is back: consumer: Cannot connect to redis://:**@here/0: refused."
    )
    assert record.outage == "redis: messages"  # type: ignore[attr-defined]
    other = logging.makeLogRecord({"msg": "another\nfault"})
    assert BrokerOutage().filter(other)
    assert (other.getMessage(), hasattr(other, "outage")) == ("another\nfault", False)


def test_an_outage_is_two_lines_and_over_when_nobody_waits_any_more(caplog: pytest.LogCaptureFixture) -> None:
    outage = Outage(logging.getLogger("worker.test"), "upload")

    def told() -> list[str]:
        events = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return events

    with caplog.at_level(logging.INFO, "worker.test"):
        outage.succeeded("job_0")
        assert told() == []
        for job_id in ("job_1", "job_2", "job_3", "job_1"):
            outage.waits(job_id, OSError("gone"))
        assert told() == ["upload waits, and others may: gone"]
        outage.succeeded("job_0")
        outage.succeeded("job_1")
        outage.gives_up("job_2")
        outage.gives_up("job_3")
        assert told() == [], "that the last of them gave up says nothing of the store"
        outage.succeeded("job_4")
        assert [event.split(",")[0] for event in told()] == ["no upload waits any more"]
        outage.waits("job_5", OSError("gone again"))
        assert told() == ["upload waits, and others may: gone again"]
