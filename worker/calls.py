"""Functions that other threads pass to the batcher's, to run with the synthesizer between two steps."""

from __future__ import annotations

import logging
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from omnivoice.errors import OmniVoiceError
from worker.synthesizers import Synthesizer

logger = logging.getLogger(__name__)

T = TypeVar("T")


class SynthesizerFailed(Exception):
    """The synthesizer raised what no caller can be blamed for: a lost device, memory that ran out."""


class CallRefused(Exception):
    """`start` said that the call is not to be made."""


@dataclass(frozen=True, slots=True, eq=False)
class Call(Generic[T]):
    """`function`, asked for by `start` at the last moment, and the future of what it returns or raises.

    One that runs alone waits until no request runs and none is on its way to the store.
    """

    function: Callable[[Synthesizer], T]
    start: Callable[[], bool]
    runs_alone: bool
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
