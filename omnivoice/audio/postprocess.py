"""What is done to a waveform after it was generated, and to a reference clip before it is encoded. NumPy only.

Waveforms are float32, (samples,) or (channels, samples); each function gives back the layout it took.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from omnivoice.audio import silence
from omnivoice.errors import GenerationFailed

SILENCE_DBFS = -50.0
PAUSE_DBFS = -40.0
"""What counts as a pause where a long reference clip is cut."""

MAX_16_BIT = silence.FULL_SCALE - 1

LOWEST_SILENCE_DBFS = -80.0
"""Nothing under this is speech, however quiet the clip."""
SPEECH_RANGE_DB = 25.0
"""Speech spans about this much between its loud and its soft frames."""
MIN_KEPT_SECONDS = 1.0
MIN_KEPT_SHARE = 0.5

JOIN_SECONDS = 0.1
"""Fade-out, pause and fade-in between two chunks take this each."""

TRIM_ABOVE_SECONDS = 20.0
TRIM_MAX_MS = 15_000
TRIM_MIN_MS = 3_000
TRIM_PAUSE_MS = 100

Waveform = NDArray[np.float32]


def _as_channels(waveform: NDArray[np.floating]) -> Waveform:
    return np.atleast_2d(np.asarray(waveform, dtype=np.float32))


def peak_of(waveform: NDArray[np.floating]) -> float:
    """Return the largest absolute value: 0 without samples, not finite where one of them is not."""
    if waveform.size == 0:
        return 0.0
    # Both carry a NaN through. Neither makes an array, as the absolute values would.
    return max(float(waveform.max()), -float(waveform.min()))


def scale_to_full(waveform: NDArray[np.floating], peak: float | None = None) -> tuple[Waveform, float]:
    """Return the waveform with its peak at most 1, and the peak it had: over 1 it was scaled, never clipped.

    `peak` is what `peak_of` found, where that is known already. Raises `GenerationFailed` where a sample is not finite.
    """
    waveform = np.asarray(waveform, dtype=np.float32)
    if peak is None:
        peak = peak_of(waveform)
    if not math.isfinite(peak):
        raise GenerationFailed("the waveform holds values that are not finite numbers")
    return (waveform / np.float32(peak) if peak > 1.0 else waveform), peak


def _to_16_bit(waveform: Waveform, peak: float | None = None) -> Waveform:
    """Scale a peak over 1, round towards zero to whole 16-bit values, kept as float32 (which holds them exactly)."""
    scaled, peak = scale_to_full(waveform, peak)
    samples = scaled * np.float32(silence.FULL_SCALE)
    np.trunc(samples, out=samples)
    if peak > MAX_16_BIT / silence.FULL_SCALE:
        np.minimum(samples, np.float32(MAX_16_BIT), out=samples)
    return samples


def remove_silence(
    waveform: NDArray[np.floating],
    sample_rate: int,
    mid_ms: int,
    lead_ms: int,
    trail_ms: int,
    peak: float | None = None,
) -> Waveform:
    """Shorten pauses over 2 · `mid_ms` to that, and the edges to `lead_ms` and `trail_ms` of silence.

    Silence is what stays under -50 dBFS. Where that would keep under a second or drop over half of the clip, and speech
    is so quiet that its soft frames lie under -50 dBFS, its own level sets the threshold: quiet speech beside one click
    is kept. Samples pass through 16-bit integers, as the model's voices did, scaled first where the peak exceeds 1.
    The result is empty for silence of `mid_ms` or longer. `peak` is as in `scale_to_full`. Raises `GenerationFailed`
    where a sample is not finite.
    """
    waveform = np.asarray(waveform, dtype=np.float32)
    samples = _to_16_bit(_as_channels(waveform), peak)
    kept = _cut_silence(samples, sample_rate, mid_ms, lead_ms, trail_ms, SILENCE_DBFS)
    num_kept, num_samples = kept.shape[1], samples.shape[1]
    if num_kept < MIN_KEPT_SECONDS * sample_rate or num_kept < MIN_KEPT_SHARE * num_samples:
        relative = silence.speech_level_dbfs(samples, sample_rate) - SPEECH_RANGE_DB
        if relative < SILENCE_DBFS:
            threshold = max(relative, LOWEST_SILENCE_DBFS)
            kept = _cut_silence(samples, sample_rate, mid_ms, lead_ms, trail_ms, threshold)
    kept *= np.float32(1.0 / silence.FULL_SCALE)
    return kept.reshape(-1) if waveform.ndim == 1 else kept


def _cut_silence(
    samples: silence.Samples, sample_rate: int, mid_ms: int, lead_ms: int, trail_ms: int, threshold_dbfs: float
) -> silence.Samples:
    if mid_ms > 0:
        samples = _shorten_pauses(samples, sample_rate, mid_ms, threshold_dbfs)
    lead = max(0, silence.leading_silence_ms(samples, sample_rate, threshold_dbfs) - lead_ms)
    samples = silence.slice_ms(samples, lead, silence.length_ms(samples, sample_rate), sample_rate)
    backwards = samples[:, ::-1]
    trail = max(0, silence.leading_silence_ms(backwards, sample_rate, threshold_dbfs) - trail_ms)
    backwards = silence.slice_ms(backwards, trail, silence.length_ms(samples, sample_rate), sample_rate)
    return backwards[:, ::-1]


def _shorten_pauses(samples: silence.Samples, sample_rate: int, mid_ms: int, threshold_dbfs: float) -> silence.Samples:
    """Keep each sounding range and `mid_ms` around it; neighbours that would overlap meet half-way."""
    ranges = silence.sounding_ranges(samples, sample_rate, mid_ms, threshold_dbfs)
    widened = [[start - mid_ms, end + mid_ms] for start, end in ranges]
    for left, right in pairwise(widened):
        if right[0] < left[1]:
            left[1] = right[0] = (left[1] + right[0]) // 2
    if len(widened) == 1:
        return silence.slice_ms(samples, widened[0][0], widened[0][1], sample_rate)
    parts = [silence.slice_ms(samples, start, end, sample_rate) for start, end in widened]
    return np.concatenate(parts, axis=1) if parts else samples[:, :0]


@lru_cache(maxsize=8)
def _ramp(start: float, stop: float, num_samples: int) -> Waveform:
    ramp = np.linspace(start, stop, num_samples, dtype=np.float32)
    ramp.flags.writeable = False
    return ramp


def fade_and_pad(
    waveform: NDArray[np.floating], sample_rate: int, pad_seconds: float, fade_seconds: float, gain: float = 1.0
) -> Waveform:
    """Multiply by `gain`, fade in and out linearly (each at most half of the waveform), put silence on both sides.

    An empty waveform is returned as it is.
    """
    waveform = np.asarray(waveform, dtype=np.float32)
    num_samples = waveform.shape[-1]
    num_pad = int(pad_seconds * sample_rate) if num_samples else 0
    padded = np.empty((*waveform.shape[:-1], num_samples + 2 * num_pad), dtype=np.float32)
    padded[..., :num_pad] = 0.0
    padded[..., num_pad + num_samples :] = 0.0
    faded = padded[..., num_pad : num_pad + num_samples]
    np.multiply(waveform, np.float32(gain), out=faded)
    num_fade = min(int(fade_seconds * sample_rate), num_samples // 2)
    if num_fade > 0:
        faded[..., :num_fade] *= _ramp(0.0, 1.0, num_fade)
        faded[..., -num_fade:] *= _ramp(1.0, 0.0, num_fade)
    return padded


def cross_fade(chunks: Sequence[NDArray[np.floating]], sample_rate: int) -> Waveform:
    """Join chunks in order with a fade-out, a pause and a fade-in of 0.1 s each.

    The fade-out runs over the end of all that was joined so far: behind a chunk shorter than the fade it reaches into
    the pause before it. Raises `ValueError` without chunks.
    """
    if not chunks:
        raise ValueError("there is nothing to join")
    num_fade = int(JOIN_SECONDS * sample_rate)
    parts = [np.array(chunk, dtype=np.float32) for chunk in chunks]
    pause = np.zeros((*parts[0].shape[:-1], num_fade), dtype=np.float32)
    num_samples = sum(part.shape[-1] for part in parts) + num_fade * (len(parts) - 1)
    joined = np.zeros((*parts[0].shape[:-1], num_samples), dtype=np.float32)
    end = parts[0].shape[-1]
    joined[..., :end] = parts[0]
    for part in parts[1:]:
        num_out = min(num_fade, end)
        joined[..., end - num_out : end] *= _ramp(1.0, 0.0, num_out)
        num_in = min(num_fade, part.shape[-1])
        part[..., :num_in] *= _ramp(0.0, 1.0, num_in)
        start = end + pause.shape[-1]
        end = start + part.shape[-1]
        joined[..., start:end] = part
    return joined


def trim_long(waveform: NDArray[np.floating], sample_rate: int) -> Waveform:
    """Cut a clip over 20 s at the last start of speech before 15 s, or at 15 s where that leaves under 3 s.

    A pause is 100 ms under -40 dBFS; a clip without sound is returned as it is.
    """
    waveform = np.asarray(waveform, dtype=np.float32)
    if waveform.shape[-1] <= TRIM_ABOVE_SECONDS * sample_rate:
        return waveform
    samples = _to_16_bit(_as_channels(waveform))
    ranges = silence.sounding_ranges(samples, sample_rate, TRIM_PAUSE_MS, PAUSE_DBFS)
    if not ranges:
        return waveform
    cut_ms = max((start for start, _ in ranges if start <= TRIM_MAX_MS), default=0)
    if cut_ms < TRIM_MIN_MS:
        cut_ms = TRIM_MAX_MS
    return waveform[..., : silence.sample_position(cut_ms, sample_rate)]
