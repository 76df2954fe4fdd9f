"""Repeating a call that may fail for a while, with growing pauses, until a deadline."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import TypeVar

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


def backoff_seconds(attempts: int) -> float:
    """How long a job waits before its next attempt, after `attempts` of them: about 1, 2, 4 … at most 60 s."""
    return min(60.0, 2.0 ** (attempts - 1)) * random.uniform(0.75, 1.25)
