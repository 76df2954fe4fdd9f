"""WAV files for tests and soak, by the standard library: the product's own writer is among what they test."""

from __future__ import annotations

import io
import wave

import numpy as np
from numpy.typing import NDArray


def wav_of(samples: NDArray[np.floating], sample_rate: int) -> bytes:
    """Mono, 16 bits, of samples within ±1."""
    file = io.BytesIO()
    with wave.open(file, "wb") as output:
        output.setnchannels(1)
        output.setsampwidth(2)
        output.setframerate(sample_rate)
        output.writeframes((samples * 32_767).astype("<i2").tobytes())
    return file.getvalue()
