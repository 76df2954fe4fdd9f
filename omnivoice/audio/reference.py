"""Whether a clip and its transcript can serve as a reference voice: checked when submitted, before a GPU sees them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from omnivoice.audio import silence
from omnivoice.audio.postprocess import scale_to_full
from omnivoice.audio.reading import FIELD, read_audio
from omnivoice.errors import GenerationFailed, InvalidRequest
from omnivoice.text import clean_text, is_speakable, text_weight

MIN_SECONDS = 1.0
MAX_SECONDS = 30.0
SILENT_DBFS = -70.0
"""A clip is silent when not even a twentieth of its 10 ms frames reach this level."""
MIN_WEIGHT_PER_SECOND = 2.0
MAX_WEIGHT_PER_SECOND = 40.0
"""Pace that a transcript may have, in the length rule's units ("Nice to meet you." in one second is 14)."""


@dataclass(frozen=True, slots=True, eq=False)
class ReferenceClip:
    """A checked clip: float32 (channels, samples) within ±1, samples a second, its length, and what was done to it."""

    waveform: NDArray[np.float32]
    sample_rate: int
    seconds: float
    warnings: tuple[str, ...] = ()


def check_reference(data: bytes, ref_text: str) -> ReferenceClip:
    """Decode a reference file and check it against its transcript.

    The clip must last 1 to 30 s, be finite and not silent; `ref_text` must be text that can be spoken in that time
    (2 to 40 units of `text_weight` a second). Values over 1 are scaled, which a warning says. Raises `InvalidRequest`
    on `ref_audio` or `ref_text`.
    """
    _check_transcript(ref_text)
    waveform, rate = read_audio(data, max_seconds=MAX_SECONDS)
    seconds = waveform.shape[1] / rate
    if seconds < MIN_SECONDS:
        raise InvalidRequest(FIELD, f"must last {MIN_SECONDS:g} to {MAX_SECONDS:g} s, not {seconds:.2f} s")
    try:
        waveform, peak = scale_to_full(waveform)
    except GenerationFailed as error:
        raise InvalidRequest(FIELD, "holds values that are not finite numbers") from error
    _check_level(waveform, rate)
    _check_pace(ref_text, seconds)
    warnings = (f"ref_audio: peaks at {peak:.3g}, scaled to 1",) if peak > 1.0 else ()
    return ReferenceClip(waveform, rate, seconds, warnings)


def _check_transcript(ref_text: str) -> None:
    if not isinstance(ref_text, str) or not ref_text.strip():
        raise InvalidRequest("ref_text", "the transcript of the reference audio is required")
    if not is_speakable(ref_text):
        raise InvalidRequest("ref_text", "holds nothing that can be spoken")


def _check_level(waveform: NDArray[np.float32], rate: int) -> None:
    mono = waveform.mean(axis=0, keepdims=True)
    level = silence.speech_level_dbfs(mono * np.float32(silence.FULL_SCALE), rate)
    if level < SILENT_DBFS:
        raise InvalidRequest(FIELD, f"is silent: hardly any of it is louder than {SILENT_DBFS:g} dBFS")


def _check_pace(ref_text: str, seconds: float) -> None:
    pace = text_weight(clean_text(ref_text)[0].strip()) / seconds
    if not MIN_WEIGHT_PER_SECOND <= pace <= MAX_WEIGHT_PER_SECOND:
        relation = "too short" if pace < MIN_WEIGHT_PER_SECOND else "too long"
        raise InvalidRequest(
            "ref_text",
            f"is {relation} to be the transcript of a clip of {seconds:.1f} s: it must say what is heard there",
        )
