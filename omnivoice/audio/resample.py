"""Band-limited resampling by a Hann-windowed sinc, as `torchaudio.functional.resample` does it by default.

The codec's encoder saw audio resampled this way (width 6, rolloff 0.99), and its codes change with the filter. Kernels
are built in float64 and applied in float32.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

FILTER_WIDTH = 6
"""Zero crossings of the sinc on each side."""
ROLLOFF = 0.99
"""Cut-off as a share of the lower Nyquist frequency."""

_BLOCK_FRAMES = 1 << 15
"""Windows filtered at once; bounds the scratch memory on an hour of audio."""


@lru_cache(maxsize=16)
def resampling_taps(old: int, new: int) -> tuple[int, NDArray[np.int64], NDArray[np.float32]]:
    """Return (width, offsets (new,), taps (new, 2·width + 1)) for coprime rates.

    Output sample f·new + p is the dot product of taps[p] and the input around sample f·old + offsets[p], `width`
    samples to each side. Only taps inside the window are stored, so that odd rates (44,101 Hz) stay small.
    """
    base = min(old, new) * ROLLOFF
    width = math.ceil(FILTER_WIDTH * old / base) + 1
    phases = np.arange(new)
    offsets = (phases * old) // new
    distance = (np.arange(-width, width + 1) + offsets[:, None]) / old - (phases / new)[:, None]
    distance = np.clip(distance * base, -FILTER_WIDTH, FILTER_WIDTH)
    window = np.cos(distance * (math.pi / FILTER_WIDTH / 2)) ** 2
    taps = (np.sinc(distance) * window * (base / old)).astype(np.float32)
    return width, offsets, taps


def resample(waveform: NDArray[np.floating], from_rate: int, to_rate: int) -> NDArray[np.float32]:
    """Return `waveform`, (samples,) or (channels, samples), at `to_rate`: float32, ceil(samples · to / from) samples.

    Rates are samples a second, whole and positive (else `ValueError`).
    """
    if from_rate <= 0 or to_rate <= 0:
        raise ValueError(f"sample rates must be positive, not {from_rate} and {to_rate}")
    waveform = np.asarray(waveform, dtype=np.float32)
    if from_rate == to_rate or waveform.shape[-1] == 0:
        return waveform
    if waveform.ndim > 1:
        return np.stack([resample(channel, from_rate, to_rate) for channel in waveform])
    divisor = math.gcd(from_rate, to_rate)
    old, new = from_rate // divisor, to_rate // divisor
    width, offsets, taps = resampling_taps(old, new)
    num_samples = len(waveform)
    num_frames = -(-num_samples // old)
    windows = sliding_window_view(np.pad(waveform, (width, width + old)), taps.shape[1])
    resampled = np.empty((num_frames, new), dtype=np.float32)
    for start in range(0, num_frames, _BLOCK_FRAMES):
        end = min(start + _BLOCK_FRAMES, num_frames)
        for phase, offset in enumerate(offsets):
            resampled[start:end, phase] = (
                windows[start * old + offset : (end - 1) * old + offset + 1 : old] @ taps[phase]
            )
    return resampled.reshape(-1)[: -(-num_samples * new // old)]
