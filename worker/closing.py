"""Why a window closed: for logs and metrics, from what the batcher knew when it closed it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from enum import StrEnum

from worker.window import Candidate, Load, WindowLimits, gather


class CloseReason(StrEnum):
    """MAX_WAIT, MAX_REQUESTS and MAX_TOKENS are the limits of the same names; ALONE: a job that has to run alone;
    JOIN: step mode, where jobs do not wait; DRAIN: the worker is stopping."""

    MAX_WAIT = "max_wait"
    MAX_REQUESTS = "max_requests"
    MAX_TOKENS = "max_tokens"
    ALONE = "alone"
    JOIN = "join"
    DRAIN = "drain"


def close_reason(
    waiting: Sequence[Candidate],
    members: Sequence[int],
    limits: WindowLimits,
    load: Load,
    *,
    joins_between_steps: bool,
    is_draining: bool,
) -> CloseReason:
    """`members` are indices of `waiting`, chosen by `gather` or `admit` with this `load`."""
    if any(waiting[index].runs_alone for index in members):
        return CloseReason.ALONE
    if load.num_requests + len(members) >= limits.max_requests:
        return CloseReason.MAX_REQUESTS
    if gather(waiting, limits, load).closes_at == -math.inf:
        return CloseReason.MAX_TOKENS
    if joins_between_steps:
        return CloseReason.JOIN
    return CloseReason.DRAIN if is_draining else CloseReason.MAX_WAIT
