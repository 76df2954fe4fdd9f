"""A claimed job on its way through the batcher, and the ways in which it leaves."""

from __future__ import annotations

from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field

from omnivoice.errors import OmniVoiceError
from omnivoice.request import SynthesisRequest, SynthesisResult
from worker.jobs.ledger import Claim
from worker.window import Candidate


@dataclass(frozen=True, slots=True)
class Synthesized:
    """The synthesizer's answer, an error included. `closed_at` is the monotonic time at which the window closed,
    `window` its id in the log."""

    result: SynthesisResult
    closed_at: float
    batch_size: int
    window: str = ""


@dataclass(frozen=True, slots=True)
class Rejected:
    """The synthesizer would not take the request; its window mates are not concerned."""

    error: OmniVoiceError


@dataclass(frozen=True, slots=True)
class NotStarted:
    """The ledger refused the start: the job was cancelled while it waited, or its lease is another worker's."""


@dataclass(frozen=True, slots=True)
class HandedBack:
    """Not run to its end. The attempt counts where the batch failed, so that the next one runs alone."""

    reason: str
    counts_attempt: bool = False


Outcome = Synthesized | Rejected | NotStarted | HandedBack


@dataclass(frozen=True, slots=True, eq=False)
class Entry:
    """One claimed job on its way through the batcher; `future` is resolved exactly once."""

    claim: Claim
    request: SynthesisRequest
    candidate: Candidate
    future: Future[Outcome] = field(default_factory=Future)

    @property
    def request_id(self) -> str:
        # With the token: a job whose lease lapsed may be back in this worker while its first copy still runs.
        return f"{self.claim.id}/{self.claim.token}"

    def resolve(self, outcome: Outcome) -> None:
        with suppress(InvalidStateError):  # a drain that ran out of time has resolved it before
            self.future.set_result(outcome)
