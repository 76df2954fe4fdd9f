"""What is said about why a window closed."""

from __future__ import annotations

from collections.abc import Sequence

from worker.closing import CloseReason, close_reason
from worker.window import Candidate, Load, WindowLimits, admit, gather

LIMITS = WindowLimits(max_wait_seconds=0.05, max_requests=4, max_tokens=1_000)
IDLE = Load()


def job(num_tokens: int = 10, *, alone: bool = False) -> Candidate:
    return Candidate(0.0, num_tokens, runs_alone=alone)


def reason(waiting: Sequence[Candidate], load: Load = IDLE, *, joins: bool = False, drains: bool = False) -> str:
    members = admit(waiting, LIMITS, load) if load.num_requests else gather(waiting, LIMITS, load).members
    assert members
    return close_reason(waiting, members, LIMITS, load, joins_between_steps=joins, is_draining=drains).value


def test_each_limit_is_named() -> None:
    assert reason([job()]) == CloseReason.MAX_WAIT
    assert reason([job()] * 4) == CloseReason.MAX_REQUESTS
    assert reason([job()] * 9) == CloseReason.MAX_REQUESTS
    assert reason([job(1_000)]) == CloseReason.MAX_TOKENS
    assert reason([job(600), job(600)]) == CloseReason.MAX_TOKENS


def test_a_job_that_runs_alone() -> None:
    assert reason([job(alone=True), job()]) == CloseReason.ALONE


def test_a_stopping_worker_closes_what_would_wait_on() -> None:
    assert reason([job()], drains=True) == CloseReason.DRAIN
    assert reason([job()] * 4, drains=True) == CloseReason.MAX_REQUESTS


def test_joining_between_steps() -> None:
    assert reason([job()], joins=True) == CloseReason.JOIN
    running = Load(num_requests=2, num_tokens=500)
    assert reason([job()], running, joins=True) == CloseReason.JOIN
    assert reason([job()] * 2, running, joins=True) == CloseReason.MAX_REQUESTS
    assert reason([job(400), job(200)], running, joins=True) == CloseReason.MAX_TOKENS
