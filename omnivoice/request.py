"""What goes into the engine and what comes out: plain data, NumPy only."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from omnivoice.errors import InvalidRequest, OmniVoiceError
from omnivoice.parameters import (
    CODEBOOK_SIZE,
    FRAME_RATE,
    MAX_CHUNK_SECONDS,
    NUM_CODEBOOKS,
    SAMPLE_RATE,
    SamplingParams,
)

Waveform = NDArray[np.float32]
"""float32 (samples,), mono."""
Codes = NDArray[np.int64]
"""int64 (8, frames), each 0…1023."""


@dataclass(frozen=True, slots=True, eq=False)
class VoicePrompt:
    """A reference voice, encoded once and used by any number of requests.

    `codes` is int64 (8, frames); `ref_text` what is said in it; `rms` the clip's root mean square before it was lifted,
    by which results are scaled back, or None where the level is unknown. Raises `InvalidRequest` for anything else: a
    code out of range would take its batch mates down with it.
    """

    codes: Codes
    ref_text: str
    rms: float | None = None

    def __post_init__(self) -> None:
        codes = self.codes
        if not (isinstance(codes, np.ndarray) and np.issubdtype(codes.dtype, np.integer) and codes.ndim == 2):
            raise InvalidRequest("voice", f"codes must be whole numbers of shape ({NUM_CODEBOOKS}, frames)")
        if codes.shape[0] != NUM_CODEBOOKS or not 1 <= codes.shape[1] <= MAX_CHUNK_SECONDS * FRAME_RATE:
            raise InvalidRequest("voice", f"codes must have shape ({NUM_CODEBOOKS}, frames), not {codes.shape}")
        if codes.min() < 0 or codes.max() >= CODEBOOK_SIZE:
            raise InvalidRequest("voice", f"codes must be from 0 to {CODEBOOK_SIZE - 1}")
        if not isinstance(self.ref_text, str) or not self.ref_text.strip():
            raise InvalidRequest("ref_text", "the transcript of the voice's clip is required")

    @property
    def frames(self) -> int:
        return int(self.codes.shape[1])


@dataclass(frozen=True, slots=True)
class SynthesisRequest:
    """One text to speak.

    `duration` is seconds of audio and overrides `speed` (1.0 is the model's pace); `seed` None draws one, which the
    result names; `normalize_text` reads English numbers, times, dates and money as words. Values are checked when the
    request is planned, not here, so that a bad one fails alone.
    """

    text: str
    language: str | None = None
    instruct: str | None = None
    voice: VoicePrompt | None = None
    duration: float | None = None
    speed: float | None = None
    seed: int | None = None
    params: SamplingParams = field(default_factory=SamplingParams)
    normalize_text: bool = False


@dataclass(frozen=True, slots=True)
class Timings:
    """Wall-clock milliseconds that a request spent generating (its share of the batch not taken apart) and decoding."""

    generated_ms: float = 0.0
    decoded_ms: float = 0.0


@dataclass(frozen=True, slots=True, eq=False)
class SynthesisResult:
    """Audio, or the error that took its place: exactly one of `waveform` and `error` is not None.

    (Of `Engine.generate_codes` a result has codes or an error, and no waveform.)

    `codes` is int64 (8, frames), or a list of them where a long text was generated in chunks.
    """

    seed: int
    waveform: Waveform | None = None
    codes: Codes | list[Codes] | None = None
    error: OmniVoiceError | None = None
    warnings: tuple[str, ...] = ()
    timings: Timings = field(default_factory=Timings)
    batch_size: int = 1
    sample_rate: int = SAMPLE_RATE

    @property
    def duration_seconds(self) -> float:
        return 0.0 if self.waveform is None else len(self.waveform) / self.sample_rate
