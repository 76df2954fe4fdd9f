"""What the batcher drives: the engine, or a tone generator in its place where the queue itself is the subject."""

from __future__ import annotations

import hashlib
import math
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
        """Advance everything by one step; returns what has ended, each with audio or an error."""

    def abort(self, request_id: str) -> None:
        """Let a request end at the next step with `RequestAborted`; unknown ids are ignored."""

    def encode_voice(
        self, waveform: Waveform, sample_rate: int, ref_text: str, preprocess: bool = True
    ) -> VoicePrompt: ...


def tone_hertz(text: str) -> int:
    """Pitch of a text's tone, from its SHA-256: a swapped result can be heard, and seen in a spectrum."""
    digest = hashlib.sha256(text.encode()).digest()
    return LOWEST_TONE_HERTZ + int.from_bytes(digest[:8], "big") % NUM_TONES


@dataclass(slots=True, eq=False)
class _Tone:
    request: SynthesisRequest
    plan: Plan
    started_at: float
    steps_left: int = TONE_STEPS
    is_aborted: bool = False


class ToneSynthesizer:
    """The real front end and its lengths, a sine for a voice; a window takes `window_seconds`, whatever is in it."""

    sample_rate = SAMPLE_RATE

    def __init__(self, window_seconds: float = 0.0) -> None:
        self._step_seconds = window_seconds / TONE_STEPS
        self._running: dict[str, _Tone] = {}

    @property
    def num_unfinished(self) -> int:
        return len(self._running)

    def add_request(self, request_id: str, request: SynthesisRequest) -> None:
        self._running[request_id] = _Tone(request, plan(request), time.monotonic())

    def step(self) -> list[tuple[str, SynthesisResult]]:
        if self._running:
            time.sleep(self._step_seconds)
        batch_size = len(self._running)
        for tone in self._running.values():
            tone.steps_left -= 1
        ended = [name for name, tone in self._running.items() if tone.is_aborted or not tone.steps_left]
        return [(name, _render(self._running.pop(name), batch_size)) for name in ended]

    def abort(self, request_id: str) -> None:
        if tone := self._running.get(request_id):
            tone.is_aborted = True

    def encode_voice(self, waveform: Waveform, sample_rate: int, ref_text: str, preprocess: bool = True) -> VoicePrompt:
        """Codes of silence, of the clip's length: a tone needs no voice, but its length rule needs the reference's."""
        mono = waveform if waveform.ndim == 1 else waveform.mean(axis=0, dtype=np.float32)
        num_samples = resample(mono, sample_rate, SAMPLE_RATE).shape[-1]
        codes = np.zeros((NUM_CODEBOOKS, max(1, num_samples // HOP_LENGTH)), dtype=np.int64)
        return VoicePrompt(codes, ref_text, rms=float(np.sqrt(np.mean(np.square(mono)))))


def _render(tone: _Tone, batch_size: int) -> SynthesisResult:
    seed = 0 if tone.request.seed is None else tone.request.seed
    if tone.is_aborted:
        return SynthesisResult(seed, error=RequestAborted("the request was aborted"), batch_size=batch_size)
    generated_at = time.monotonic()
    phase = np.arange(tone.plan.frames * HOP_LENGTH) * (2 * math.pi * tone_hertz(tone.request.text) / SAMPLE_RATE)
    waveform = (TONE_AMPLITUDE * np.sin(phase)).astype(np.float32)
    timings = Timings(
        generated_ms=(generated_at - tone.started_at) * 1_000, decoded_ms=(time.monotonic() - generated_at) * 1_000
    )
    return SynthesisResult(seed, waveform=waveform, warnings=tone.plan.warnings, timings=timings, batch_size=batch_size)


def build_synthesizer(settings: Settings) -> Synthesizer:
    """The synthesizer that the settings name, ready to run. Raises `StartupError`, one line, where it cannot be."""
    builders: dict[str, Callable[[Settings], Synthesizer]] = {"engine": _build_engine, "tone": _build_tone}
    return builders[settings.synthesizer](settings)


def _build_tone(settings: Settings) -> Synthesizer:
    return ToneSynthesizer(settings.tone_window_ms / 1_000)


def _build_engine(settings: Settings) -> Synthesizer:
    try:
        from omnivoice.engine import Engine, EngineConfig  # noqa: PLC0415  torch is loaded for the engine alone
    except ImportError as error:
        raise StartupError(f"OMNIVOICE_SYNTHESIZER=engine needs the engine extra: {error}") from error
    config = EngineConfig(
        device=settings.device,
        dtype=settings.dtype,
        mode=settings.mode,
        max_batch_requests=settings.max_batch_requests,
        max_batch_tokens=settings.max_batch_tokens,
    )
    try:
        return Engine.from_checkpoint(settings.model, config)
    except CheckpointError as error:
        raise StartupError(f"OMNIVOICE_MODEL: {error}") from error
    except (OSError, ValueError, RuntimeError, AssertionError) as error:
        # torch asserts that it was built for the device that is asked for, and says so in several lines.
        first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise StartupError(f"the model {settings.model} cannot run on {settings.device}: {first_line}") from error
