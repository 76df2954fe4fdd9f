"""Which waiting jobs run together, and when their window closes: pure functions, no clock and no threads.

A window closes at the first of three events: its oldest member has waited `max_wait_seconds`, it holds `max_requests`,
or the next job's tokens do not fit. Times are seconds of one monotonic clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

BULK_HANDICAP_SECONDS = 5.0
"""A bulk job is placed as if it had arrived this much later: interactive jobs overtake it, but only for so long.

Strict priority would leave bulk jobs waiting for ever, with their leases held, while interactive ones keep coming.
"""

HUNG_SECONDS = 2.0
"""An upload that takes longer than this holds up nobody but the jobs that run alone."""
MAX_PASSED_SECONDS = 60.0
"""For this long others go before a job that must run alone while an upload hangs; then they wait with it, or a busy
worker whose uploads are always slow would never be clear for it."""


@dataclass(frozen=True, slots=True)
class WindowLimits:
    max_wait_seconds: float
    max_requests: int
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Candidate:
    """What the rule has to know of one waiting job.

    `runs_alone` marks a job whose earlier attempt took its batch down, or was lost with its worker: mates of its next
    attempt would be burnt with it.
    """

    arrived_at: float
    num_tokens: int
    is_bulk: bool = False
    runs_alone: bool = False

    @property
    def place(self) -> float:
        return self.arrived_at + (BULK_HANDICAP_SECONDS if self.is_bulk else 0.0)


@dataclass(frozen=True, slots=True)
class Load:
    """What the worker holds already. `num_requests` and `num_tokens` are of what runs: that alone takes room.

    Jobs that are finishing are generated and being decoded; those that are unsettled have their audio on its way to the
    store. `runs_alone` tells of one that runs or is finishing. Of what must run alone and waits since `passable_since`
    (monotonic seconds) or later, others go before it; +∞ where nobody does.
    """

    num_requests: int = 0
    num_tokens: int = 0
    runs_alone: bool = False
    num_finishing: int = 0
    num_unsettled: int = 0
    passable_since: float = math.inf

    @property
    def is_clear(self) -> bool:
        """Whether there is nothing that the death of the worker would take along."""
        return not (self.num_requests or self.num_finishing or self.num_unsettled)

    def lets_pass(self, waits_since: float) -> bool:
        """Whether others go before a job, or a call, that must run alone and waits since then."""
        return waits_since >= self.passable_since


def passable_since(unsettled_since: Iterable[float], now: float) -> float:
    """`Load.passable_since` beside uploads that began at these times: there is one that hangs, or there is none."""
    return now - MAX_PASSED_SECONDS if min(unsettled_since, default=now) < now - HUNG_SECONDS else math.inf


@dataclass(frozen=True, slots=True)
class Window:
    """`members` are indices of the candidates, in the order they enter; the window may be run from `closes_at` on."""

    members: tuple[int, ...]
    closes_at: float


NO_WINDOW = Window((), math.inf)


def gather(waiting: Sequence[Candidate], limits: WindowLimits, load: Load = Load()) -> Window:
    """The window that a synthesizer on which nothing runs would run next.

    `closes_at` is −∞ where waiting longer cannot add to it, +∞ where there is nothing to run.
    """
    members, is_full = _fill(waiting, limits, load)
    if not members:
        return NO_WINDOW
    if is_full:
        return Window(members, -math.inf)
    return Window(members, min(waiting[index].arrived_at for index in members) + limits.max_wait_seconds)


def admit(waiting: Sequence[Candidate], limits: WindowLimits, running: Load) -> tuple[int, ...]:
    """Indices of the jobs that join what runs, between two steps and without waiting for others."""
    return _fill(waiting, limits, running)[0]


def _fill(waiting: Sequence[Candidate], limits: WindowLimits, running: Load) -> tuple[tuple[int, ...], bool]:
    order = sorted(range(len(waiting)), key=lambda index: waiting[index].place)
    if not order or running.runs_alone:
        return (), running.runs_alone
    first = waiting[order[0]]
    if first.runs_alone and not running.lets_pass(first.arrived_at):
        # It is its turn: nobody may join what runs until that has ended, or a busy worker would never be clear for it.
        return ((order[0],) if running.is_clear else ()), True
    members: list[int] = []
    num_tokens = running.num_tokens
    for index in order:
        candidate = waiting[index]
        if candidate.runs_alone:
            continue
        if running.num_requests + len(members) >= limits.max_requests:
            return tuple(members), True
        is_first = not members and not running.num_requests
        # A job above the whole allowance still has to run some time: by itself.
        if not is_first and num_tokens + candidate.num_tokens > limits.max_tokens:
            return tuple(members), True
        members.append(index)
        num_tokens += candidate.num_tokens
    is_full = running.num_requests + len(members) >= limits.max_requests or num_tokens >= limits.max_tokens
    return tuple(members), is_full
