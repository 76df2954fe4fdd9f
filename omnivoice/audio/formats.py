"""The file formats that audio is delivered in."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

COMMON_RATES = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
OPUS_RATES = (8_000, 12_000, 16_000, 24_000, 48_000)
"""The only rates that Opus encodes."""


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """A way to write audio: its media type, file extension, allowed samples a second, and libsndfile's names for it."""

    content_type: str
    extension: str
    sample_rates: tuple[int, ...]
    container: str
    encoding: str


AUDIO_FORMATS: MappingProxyType[str, AudioFormat] = MappingProxyType(
    {
        "wav": AudioFormat("audio/wav", "wav", COMMON_RATES, "WAV", "PCM_16"),
        "flac": AudioFormat("audio/flac", "flac", COMMON_RATES, "FLAC", "PCM_16"),
        "mp3": AudioFormat("audio/mpeg", "mp3", COMMON_RATES, "MP3", "MPEG_LAYER_III"),
        "ogg": AudioFormat("audio/ogg", "ogg", COMMON_RATES, "OGG", "VORBIS"),
        "opus": AudioFormat("audio/ogg; codecs=opus", "opus", OPUS_RATES, "OGG", "OPUS"),
    }
)
"""Formats by the name that a request gives."""
