"""Repeating a call that may fail for a while, with growing pauses, until a deadline."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import TypeVar

from worker.jobs.errors import QueueUnavailable

FIRST_PAUSE_SECONDS = 0.2
LONGEST_PAUSE_SECONDS = 5.0

T = TypeVar("T")


def keep_trying(call: Callable[[], T], is_worth_it: Callable[[Exception], bool], seconds: float) -> T:
    """The result of `call`. Raises its last exception when `seconds` are over or `is_worth_it` denies another try."""
    end = time.monotonic() + seconds
    pause = FIRST_PAUSE_SECONDS
    while True:
        try:
            return call()
        except Exception as error:
            if not is_worth_it(error) or time.monotonic() + pause >= end:
                raise
        # Jitter, or all tasks of a worker would knock on a recovering server in the same instant.
        time.sleep(pause * random.uniform(0.5, 1.0))
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def outlast_redis(call: Callable[[], T], is_draining: Callable[[], bool], last_seconds: float) -> T:
    """The result of `call`, with which a job ends, however long Redis is away: work that is done is not done again.

    A worker that drains gives it `last_seconds`, and raises `QueueUnavailable` then.
    """

    def is_away(error: Exception) -> bool:
        return isinstance(error, QueueUnavailable)

    try:
        return keep_trying(call, lambda error: is_away(error) and not is_draining(), math.inf)
    except QueueUnavailable:
        return keep_trying(call, is_away, last_seconds)


def backoff_seconds(attempts: int) -> float:
    """How long a job waits before its next attempt, after `attempts` of them: about 1, 2, 4 … at most 60 s."""
    return min(60.0, 2.0 ** (attempts - 1)) * random.uniform(0.75, 1.25)
