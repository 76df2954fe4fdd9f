"""Decoding an uploaded audio file, within limits that its header cannot talk us out of."""

from __future__ import annotations

import io

import numpy as np
import soundfile
from numpy.typing import NDArray

from omnivoice.errors import InvalidRequest

FIELD = "ref_audio"
MIN_SAMPLE_RATE = 8_000
MAX_SAMPLE_RATE = 192_000
MAX_CHANNELS = 8
MAX_SECONDS = 600.0
CODEC_DELAY_SECONDS = 0.1
"""What a lossy codec may add: an MP3 made of 30 s decodes to a little more."""


def read_audio(data: bytes, max_seconds: float = MAX_SECONDS) -> tuple[NDArray[np.float32], int]:
    """Decode a file in any format of libsndfile (WAV, FLAC, MP3, OGG, AIFF, …): (channels, samples), samples a second.

    Integer formats come out within ±1, floating-point ones as they are. Raises `InvalidRequest` on `ref_audio` for
    what cannot be decoded, holds no audio, lasts over `max_seconds`, or has a rate or channel count out of range.
    """
    if not data:
        raise InvalidRequest(FIELD, "the file is empty")
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            rate, channels = int(file.samplerate), int(file.channels)
            _check_layout(rate, channels)
            max_samples = int((max_seconds + CODEC_DELAY_SECONDS) * rate)
            # One sample more than allowed shows that a file is too long, whatever length its header claims.
            frames = file.read(frames=max_samples + 1, dtype="float32", always_2d=True)
    except (soundfile.SoundFileError, RuntimeError, ValueError, TypeError) as error:
        reason = " ".join(str(getattr(error, "error_string", error)).split())
        raise InvalidRequest(FIELD, f"cannot be decoded ({reason}); WAV, FLAC, MP3, OGG or AIFF is needed") from error
    if len(frames) == 0:
        raise InvalidRequest(FIELD, "the file holds no audio")
    if len(frames) > max_samples:
        raise InvalidRequest(FIELD, f"must last at most {max_seconds:g} s")
    return np.ascontiguousarray(frames.T), rate


def _check_layout(rate: int, channels: int) -> None:
    if not MIN_SAMPLE_RATE <= rate <= MAX_SAMPLE_RATE:
        raise InvalidRequest(FIELD, f"must have {MIN_SAMPLE_RATE} to {MAX_SAMPLE_RATE} samples a second, not {rate}")
    if channels > MAX_CHANNELS:
        raise InvalidRequest(FIELD, f"must have at most {MAX_CHANNELS} channels, not {channels}")
