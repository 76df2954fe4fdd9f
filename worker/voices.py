"""What tells reference voices apart in a worker, without fetching a clip to know it."""

from __future__ import annotations

from typing import NamedTuple

MAX_VOICES = 256
"""A prompt of 30 s holds 8 · 750 codes of 8 bytes: 48 kB."""


class VoiceKey(NamedTuple):
    """What a prompt depends on. The reference's object key names its content."""

    reference_key: str
    ref_text: str
    preprocess: bool
