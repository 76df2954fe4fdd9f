"""Audio files in memory: decoding whatever libsndfile reads, encoding what a request asks for."""

from __future__ import annotations

import io

import numpy as np
import soundfile
from numpy.typing import NDArray

from omnivoice.audio.formats import AUDIO_FORMATS, AudioFormat
from omnivoice.audio.postprocess import scale_to_full
from omnivoice.audio.reading import read_audio
from omnivoice.audio.reference import ReferenceClip, check_reference
from omnivoice.audio.resample import resample
from omnivoice.audio.wav import encode_wav, to_pcm_16
from omnivoice.errors import GenerationFailed, InvalidRequest

__all__ = ["AUDIO_FORMATS", "AudioFormat", "ReferenceClip", "check_reference", "encode_audio", "read_audio"]

BLOCK_SAMPLES = 1 << 16
"""Samples handed to an encoder at once: libsndfile's Vorbis and Opus encoders overflow the stack on long blocks."""


def encode_audio(
    waveform: NDArray[np.floating],
    sample_rate: int,
    format: str,  # noqa: A002 - the request's own name for it
    to_rate: int | None = None,
) -> bytes:
    """Return a whole audio file of `waveform`, (samples,) or (channels, samples), resampled to `to_rate` if given.

    A peak over 1 scales the waveform down; it is never clipped (`scale_to_full` tells beforehand whether it will be).
    Raises `InvalidRequest` for an unknown `format` or a rate that it does not take, `GenerationFailed` for a waveform
    that is empty or not finite.
    """
    audio_format = AUDIO_FORMATS.get(format)
    if audio_format is None:
        raise InvalidRequest("format", f"must be one of {', '.join(AUDIO_FORMATS)}, not {format!r}")
    rate = to_rate or sample_rate
    if rate not in audio_format.sample_rates:
        allowed = ", ".join(map(str, audio_format.sample_rates))
        raise InvalidRequest("sample_rate", f"must be one of {allowed} for {format}, not {rate}")
    # Before resampling, or one NaN would spread over a whole window; after it as well, as the filter overshoots.
    scaled, _ = scale_to_full(waveform)
    if scaled.shape[-1] == 0:
        raise GenerationFailed("the waveform is empty")
    if rate != sample_rate:
        scaled, _ = scale_to_full(resample(scaled, sample_rate, rate))
    frames = np.atleast_2d(scaled).T
    return encode_wav(frames, rate) if audio_format.container == "WAV" else _write(frames, rate, audio_format)


def _write(frames: NDArray[np.float32], rate: int, audio_format: AudioFormat) -> bytes:
    """Encode `frames`, float32 (samples, channels) within ±1."""
    data: NDArray[np.generic] = to_pcm_16(frames) if audio_format.encoding == "PCM_16" else frames
    buffer = io.BytesIO()
    with soundfile.SoundFile(
        buffer, "w", rate, frames.shape[1], subtype=audio_format.encoding, format=audio_format.container
    ) as file:
        for start in range(0, len(data), BLOCK_SAMPLES):
            file.write(np.ascontiguousarray(data[start : start + BLOCK_SAMPLES]))
    return buffer.getvalue()
