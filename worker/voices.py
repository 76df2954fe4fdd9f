"""The reference voices of jobs: fetched from the store, encoded through the batcher, kept while they are used.

Encoding uses the device, so an attempt is counted for it, and a job that was lost with its worker encodes while there
is nothing that it could take along. The attempt covers the encoding alone: a job that waits for its turn, or for its
window, has done nothing that could have ended the worker, and is not burnt when another job ends it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import NamedTuple

from omnivoice.audio.files import check_reference
from omnivoice.errors import InvalidRequest
from omnivoice.request import VoicePrompt
from omnivoice.voice import VoiceCache
from worker.batcher import Batcher
from worker.calls import CallHandedBack, CallRefused, SynthesizerFailed
from worker.entry import HandedBack, NotStarted
from worker.jobs.errors import QueueUnavailable, StorageError
from worker.jobs.ledger import Claim, Ledger
from worker.jobs.storage import ObjectStore
from worker.patience import keep_trying
from worker.synthesizers import Synthesizer

logger = logging.getLogger(__name__)

MAX_VOICES = 256
"""A prompt of 30 s holds 8 · 750 codes of 8 bytes: 48 kB."""


class VoiceKey(NamedTuple):
    """What a prompt depends on. `content` is the last part of the clip's object key, a hash of its bytes."""

    content: str
    ref_text: str
    preprocess: bool


class NotEncoded(Exception):
    """The job that was to encode a voice has not: `outcome` is what becomes of it; others may try themselves."""

    def __init__(self, claim: Claim, outcome: NotStarted | HandedBack) -> None:
        super().__init__("the voice was not encoded")
        self.claim = claim
        self.outcome = outcome

    def outcome_for(self, claim: Claim) -> NotStarted | HandedBack:
        return self.outcome if claim is self.claim else HandedBack(str(self))


class Voices:
    """The voices of one worker. Threads that ask for the same voice encode it once."""

    def __init__(
        self,
        store: ObjectStore,
        ledger: Ledger,
        batcher: Batcher,
        patience_seconds: float,
        is_draining: Callable[[], bool],
    ) -> None:
        self._store = store
        self._ledger = ledger
        self._batcher = batcher
        self._patience_seconds = patience_seconds
        self._is_draining = is_draining
        self._cache = VoiceCache(MAX_VOICES)

    def prompt(self, claim: Claim) -> VoicePrompt | None:
        """The voice that a job asks for, if it asks for one.

        Raises `InvalidRequest` for a clip that is none, `StorageError` when patience with the store is over,
        `QueueUnavailable`, and `NotEncoded`.
        """
        if claim.reference_key is None:
            return None
        if claim.request.ref_text is None:
            raise InvalidRequest("ref_text", "is required with a reference clip")
        preprocess = claim.request.to_synthesis_request().params.preprocess_prompt
        reference_key = claim.reference_key
        key = VoiceKey(reference_key.rpartition("/")[2], claim.request.ref_text, preprocess)
        return keep_trying(
            lambda: self._cache.get(key, lambda: self._encode(claim, reference_key, key)),
            lambda error: self._may_try_again(claim, error),
            self._patience_seconds,
        )

    def _encode(self, claim: Claim, reference_key: str, key: VoiceKey) -> VoicePrompt:
        clip = check_reference(self._store.get(reference_key), key.ref_text)

        def encode(synthesizer: Synthesizer) -> VoicePrompt:
            prompt = synthesizer.encode_voice(clip.waveform, clip.sample_rate, key.ref_text, key.preprocess)
            self._give_attempt_back(claim)
            return prompt

        call = self._batcher.call(encode, runs_alone=claim.must_run_alone, start=lambda: self._ledger.start([claim])[0])
        try:
            return call.result()
        except CallRefused as error:
            raise NotEncoded(claim, NotStarted()) from error
        except CallHandedBack as error:
            raise NotEncoded(claim, HandedBack(str(error))) from error
        except SynthesizerFailed as error:
            raise NotEncoded(claim, HandedBack(str(error), counts_attempt=True)) from error

    def _give_attempt_back(self, claim: Claim) -> None:
        """On the batcher's thread, before anything else can use the device."""
        try:
            self._ledger.pause(claim)
        except QueueUnavailable as error:  # the window's start will fail too, or find the attempt counted
            logger.warning("attempt not given back: %s", error, extra={"job": claim.id})

    def _may_try_again(self, claim: Claim, error: Exception) -> bool:
        if self._is_draining():
            return False
        if isinstance(error, NotEncoded):  # of another job, whose encoding of this voice was waited for
            return error.claim is not claim
        return isinstance(error, StorageError) and error.retryable
