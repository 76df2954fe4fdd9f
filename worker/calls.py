"""Functions that other threads pass to the batcher's, to run with the synthesizer between two steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from omnivoice.errors import OmniVoiceError
from worker.synthesizers import Synthesizer
from worker.window import Load

logger = logging.getLogger(__name__)

T = TypeVar("T")


class SynthesizerFailed(Exception):
    """The synthesizer raised what no caller can be blamed for: a lost device, memory that ran out."""


class CallRefused(Exception):
    """`start` said that the call is not to be made."""


class CallHandedBack(Exception):
    """The call was not made, and is not going to be: the worker ends."""


@dataclass(frozen=True, slots=True, eq=False)
class Call(Generic[T]):
    """`function`, asked for by `start` at the last moment, and the future of what it returns or raises.

    One that runs alone waits until no request runs, none is being finished and none is on its way to the store. `since`
    is the monotonic time at which it was asked for.
    """

    function: Callable[[Synthesizer], T]
    start: Callable[[], bool]
    runs_alone: bool
    since: float = field(default_factory=time.monotonic)
    future: Future[T] = field(default_factory=Future)

    def make(self, synthesizer: Synthesizer) -> Exception | None:
        """Settle the future. Returns the error that is the synthesizer's own fault, where there was one."""
        try:
            if not self.start():
                raise CallRefused
        except Exception as error:  # noqa: BLE001  whoever waits for the future learns of it
            self.future.set_exception(error)
            return None
        try:
            result = self.function(synthesizer)
        except OmniVoiceError as error:
            self.future.set_exception(error)
        except Exception as error:
            logger.exception("a call of the synthesizer failed")
            self.future.set_exception(SynthesizerFailed(f"the synthesizer failed: {error}"))
            return error
        else:
            self.future.set_result(result)
        return None


class CallQueue:
    """Calls in the order in which they came. Not locked: its owner sees to that."""

    def __init__(self) -> None:
        self._calls: list[Call[Any]] = []

    def __len__(self) -> int:
        return len(self._calls)

    def put(self, call: Call[Any]) -> None:
        self._calls.append(call)

    def pop_due(self, load: Load) -> Call[Any]:
        """The call that `has_due` tells of."""
        call = self._due(load)
        assert call is not None
        self._calls.remove(call)
        return call

    def has_due(self, load: Load) -> bool:
        """Whether a call may be made beside this load: the first, or the first behind those that let others pass."""
        return self._due(load) is not None

    def wants_to_be_alone(self, load: Load) -> bool:
        """Whether a call waits until it can be alone. Meanwhile no request starts: or it would wait for ever."""
        return any(call.runs_alone and not load.lets_pass(call.since) for call in self._calls)

    def _due(self, load: Load) -> Call[Any] | None:
        for call in self._calls:
            if load.is_clear if call.runs_alone else not load.runs_alone:
                return call
            if not (call.runs_alone and load.lets_pass(call.since)):
                return None
        return None

    def hand_back(self, reason: str) -> None:
        while self._calls:
            self._calls.pop(0).future.set_exception(CallHandedBack(reason))
