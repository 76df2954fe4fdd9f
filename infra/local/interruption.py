"""Being told to stop, by Ctrl-C or another signal: at the points that allow it, and nowhere else.

Starting services and speaking may be interrupted. Stopping services may not: it is bounded, and half of it would leave
processes behind that nobody knows of.
"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass(slots=True)
class _Gate:
    """A thread that a library started at its import takes the signals that this thread holds back, and the handler runs
    then all the same: so the mask alone does not make them wait."""

    is_open: bool = False
    was_told: bool = False


_gate = _Gate()


class Interrupted(BaseException):
    """Told to stop by a signal.

    Not a KeyboardInterrupt: where one passes through `exec` of a text (an import that makes a named tuple is enough),
    CPython 3.11 ends a `-m` run by SIGINT, also when the exception was caught and another status asked for.
    """


def hold_back_signals() -> None:
    """From here on the stop signals wait, until a block `interruptible` begins or is at work."""
    signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    for number in STOP_SIGNALS:
        signal.signal(number, _interrupt)


@contextmanager
def interruptible() -> Iterator[None]:
    """Raises `Interrupted` in the block when a stop signal comes or has come before. Not to be nested."""
    # What is started in the block inherits the mask as it is there: services must not have the signals blocked.
    _gate.is_open = True
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        if _gate.was_told:
            raise Interrupted
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
        _gate.is_open = False


def _interrupt(signum: int, frame: FrameType | None) -> None:
    """Raise once, where that is allowed.

    A second Ctrl-C (and `make` sends one of its own) must not cut short what the first one led to.
    """
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    _gate.was_told = True
    if _gate.is_open:
        raise Interrupted
