"""16-bit PCM and the WAV around it, by hand: through libsndfile it takes twice as long. Other formats: `files`.

NumPy only.
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

PCM_16_PEAK = 32_767
HEADER_BYTES = 44


def to_pcm_16(waveform: NDArray[np.float32]) -> NDArray[np.int16]:
    """Round float32 of any shape within ±1 to 16-bit integers, so that no clipping rule of a library is in play."""
    scaled = waveform * np.float32(PCM_16_PEAK)
    np.rint(scaled, out=scaled)
    return scaled.astype(np.int16)


def encode_wav(frames: NDArray[np.float32], sample_rate: int) -> bytes:
    """Return a WAV file, 16-bit PCM, of float32 (samples, channels) within ±1."""
    samples = np.ascontiguousarray(to_pcm_16(frames).astype("<i2", copy=False))
    frame_bytes = samples.itemsize * samples.shape[1]
    riff = struct.pack("<4sI4s", b"RIFF", HEADER_BYTES - 8 + samples.nbytes, b"WAVE")
    layout = (1, samples.shape[1], sample_rate, sample_rate * frame_bytes, frame_bytes, 8 * samples.itemsize)
    form = struct.pack("<4sIHHIIHH", b"fmt ", 16, *layout)
    return b"".join((riff, form, struct.pack("<4sI", b"data", samples.nbytes), samples.data))
