"""What the batcher drives: the engine, or a tone generator in its place where the queue itself is the subject."""

from __future__ import annotations

import hashlib
import math
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from omnivoice.audio.resample import resample
from omnivoice.errors import CheckpointError, RequestAborted
from omnivoice.parameters import HOP_LENGTH, NUM_CODEBOOKS, SAMPLE_RATE
from omnivoice.planning import Plan, plan
from omnivoice.request import SynthesisRequest, SynthesisResult, Timings, VoicePrompt, Waveform
from worker.jobs.errors import StartupError
from worker.jobs.settings import Settings

TONE_STEPS = 8
"""Steps that a window of tones takes: enough for requests to join, leave and be aborted between them."""
TONE_AMPLITUDE = 0.3
LOWEST_TONE_HERTZ = 200
NUM_TONES = 4_000
"""Tones are whole Hertz from the lowest upwards, all below the Nyquist frequency of every output rate but 8 kHz."""


class Synthesizer(Protocol):
    """The engine's scheduler interface. One thread uses it; no method but `add_request` blames a single request."""

    @property
    def sample_rate(self) -> int: ...

    @property
    def num_unfinished(self) -> int: ...

    def add_request(self, request_id: str, request: SynthesisRequest) -> None:
        """Take a request into the running batch. Raises `InvalidRequest`."""

    def step(self) -> list[tuple[str, SynthesisResult]]:
        """Advance everything by one step; returns what has ended, each with audio or an error.

        With nothing left to advance it may wait for the next result, but not where a callback tells of that.
        """

    def take_generated(self) -> list[str]:
        """Ids of requests that were generated since the last call and are finished beside the others' steps.

        They take no room in the batch any more, and come out of a later step.
        """

    def notify_finished(
        self, callback: Callable[[], None] | None, on_progress: Callable[[], None] | None = None
    ) -> None:
        """Have `callback` called, from another thread, whenever a result waits to come out of `step`.

        `on_progress` is called in the same way when a part of what is being finished is done, where it has parts that
        follow one another. Neither must call the synthesizer.
        """

    def abort(self, request_id: str) -> None:
        """Let a request end at the next step with `RequestAborted`, generated or not; unknown ids are ignored."""

    def encode_voice(
        self, waveform: Waveform, sample_rate: int, ref_text: str, preprocess: bool = True
    ) -> VoicePrompt: ...


def tone_hertz(text: str) -> int:
    """Pitch of a text's tone, from its SHA-256: a swapped result can be heard, and seen in a spectrum."""
    digest = hashlib.sha256(text.encode()).digest()
    return LOWEST_TONE_HERTZ + int.from_bytes(digest[:8], "big") % NUM_TONES


@dataclass(slots=True, eq=False)
class _Tone:
    request_id: str
    request: SynthesisRequest
    plan: Plan
    started_at: float
    steps_left: int = TONE_STEPS
    batch_size: int = 1
    generated_at: float = 0.0
    is_aborted: bool = False


class ToneSynthesizer:
    """The real front end and its lengths, a sine for a voice; a window takes `window_seconds`, whatever is in it.

    A result comes out of its request's last step, or, where it takes `finishing_seconds`, out of a later one.
    """

    sample_rate = SAMPLE_RATE

    def __init__(self, window_seconds: float = 0.0, finishing_seconds: float = 0.0) -> None:
        self._step_seconds = window_seconds / TONE_STEPS
        self._finishing_seconds = finishing_seconds
        self._running: dict[str, _Tone] = {}
        self._finishing: dict[str, _Tone] = {}
        self._generated: list[str] = []
        self._changed = threading.Condition()
        # These two are shared with the threads that finish, and guarded by `_changed`.
        self._finished: list[tuple[_Tone, SynthesisResult]] = []
        self._callback: Callable[[], None] | None = None

    @property
    def num_unfinished(self) -> int:
        return len(self._running) + len(self._finishing)

    def add_request(self, request_id: str, request: SynthesisRequest) -> None:
        self._running[request_id] = _Tone(request_id, request, plan(request), time.monotonic())

    def step(self) -> list[tuple[str, SynthesisResult]]:
        aborted = [tone for tone in self._finishing.values() if tone.is_aborted]
        ended = [(self._finishing.pop(tone.request_id), _render(tone)) for tone in aborted]
        if self._running:
            ended += self._advance()
        ended += self._take_finished(waits=not (ended or self._running))
        return [(tone.request_id, result) for tone, result in ended]

    def take_generated(self) -> list[str]:
        generated, self._generated = self._generated, []
        return generated

    def notify_finished(
        self, callback: Callable[[], None] | None, on_progress: Callable[[], None] | None = None
    ) -> None:
        with self._changed:
            self._callback = callback

    def abort(self, request_id: str) -> None:
        if tone := self._running.get(request_id) or self._finishing.get(request_id):
            tone.is_aborted = True

    def _advance(self) -> list[tuple[_Tone, SynthesisResult]]:
        time.sleep(self._step_seconds)
        for tone in self._running.values():
            tone.steps_left -= 1
            tone.batch_size = len(self._running)
        ended = []
        for tone in [tone for tone in self._running.values() if tone.is_aborted or not tone.steps_left]:
            del self._running[tone.request_id]
            tone.generated_at = time.monotonic()
            if tone.is_aborted or not self._finishing_seconds:
                ended.append((tone, _render(tone)))
            else:
                self._finishing[tone.request_id] = tone
                self._generated.append(tone.request_id)
                threading.Thread(target=self._finish, args=[tone], name="tone-finisher", daemon=True).start()
        return ended

    def _finish(self, tone: _Tone) -> None:
        self.hold(tone.request)
        result = _render(tone)
        with self._changed:
            self._finished.append((tone, result))
            self._changed.notify()
            callback = self._callback
        if callback is not None:
            callback()

    def hold(self, request: SynthesisRequest) -> None:
        """What finishing a result takes, beside the time to render it. Runs on a thread of the request's own."""
        time.sleep(self._finishing_seconds)

    def _take_finished(self, waits: bool) -> list[tuple[_Tone, SynthesisResult]]:
        with self._changed:
            if waits and self._finishing and self._callback is None:
                self._changed.wait_for(lambda: self._finished)
            finished, self._finished = self._finished, []
        ended = [(tone, result) for tone, result in finished if self._finishing.get(tone.request_id) is tone]
        for tone, _ in ended:  # the rest was aborted meanwhile, and has ended already
            del self._finishing[tone.request_id]
        return ended

    def encode_voice(self, waveform: Waveform, sample_rate: int, ref_text: str, preprocess: bool = True) -> VoicePrompt:
        """Codes of silence, of the clip's length: a tone needs no voice, but its length rule needs the reference's."""
        mono = waveform if waveform.ndim == 1 else waveform.mean(axis=0, dtype=np.float32)
        num_samples = resample(mono, sample_rate, SAMPLE_RATE).shape[-1]
        codes = np.zeros((NUM_CODEBOOKS, max(1, num_samples // HOP_LENGTH)), dtype=np.int64)
        return VoicePrompt(codes, ref_text, rms=float(np.sqrt(np.mean(np.square(mono)))))


def _render(tone: _Tone) -> SynthesisResult:
    seed = 0 if tone.request.seed is None else tone.request.seed
    if tone.is_aborted:
        return SynthesisResult(seed, error=RequestAborted("the request was aborted"), batch_size=tone.batch_size)
    phase = np.arange(tone.plan.frames * HOP_LENGTH) * (2 * math.pi * tone_hertz(tone.request.text) / SAMPLE_RATE)
    waveform = (TONE_AMPLITUDE * np.sin(phase)).astype(np.float32)
    timings = Timings(
        generated_ms=(tone.generated_at - tone.started_at) * 1_000,
        decoded_ms=(time.monotonic() - tone.generated_at) * 1_000,
    )
    return SynthesisResult(
        seed, waveform=waveform, warnings=tone.plan.warnings, timings=timings, batch_size=tone.batch_size
    )


def build_synthesizer(settings: Settings) -> Synthesizer:
    """The synthesizer that the settings name, ready to run. Raises `StartupError`, one line, where it cannot be."""
    builders: dict[str, Callable[[Settings], Synthesizer]] = {"engine": _build_engine, "tone": _build_tone}
    return builders[settings.synthesizer](settings)


def _build_tone(settings: Settings) -> Synthesizer:
    return ToneSynthesizer(settings.tone_window_ms / 1_000)


def _build_engine(settings: Settings) -> Synthesizer:
    try:
        # torch is loaded for the engine alone
        from omnivoice.config import EngineConfig  # noqa: PLC0415
        from omnivoice.engine import Engine  # noqa: PLC0415
    except ImportError as error:
        raise StartupError(f"OMNIVOICE_SYNTHESIZER=engine needs the engine extra: {error}") from error
    config = EngineConfig(
        device=settings.device,
        dtype=settings.dtype,
        mode=settings.mode,
        max_batch_requests=settings.max_batch_requests,
        max_batch_tokens=settings.max_batch_tokens,
        deterministic=settings.deterministic,
        fp8=settings.fp8,
        memory_gib=settings.memory_gib,
    )
    try:
        return Engine.from_checkpoint(settings.model, config)
    except CheckpointError as error:
        raise StartupError(f"OMNIVOICE_MODEL: {error}") from error
    except (OSError, ValueError, RuntimeError, AssertionError) as error:
        # torch asserts that it was built for the device that is asked for, and says so in several lines.
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise StartupError(f"the model {settings.model} cannot run on {settings.device}: {first_line}") from error
