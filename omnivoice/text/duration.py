"""How long a text will be: a weight for each character, scaled by the pace of a reference.

The rule is the model's own; golden cases of kind `duration` pin it. The engine calls it to size the masked target, the
HTTP layer to estimate a job, and the reference check to see whether a transcript can belong to its clip.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_left
from functools import lru_cache

from omnivoice.text.tables import text_tables

DEFAULT_REF_TEXT = "Nice to meet you."
DEFAULT_REF_FRAMES = 25
"""The pace of a request without a reference voice: this sentence in one second."""

SHORT_FRAMES = 50.0
"""Estimates under this (2 s) are lifted, since the linear rule starves short texts."""

_TATWEEL = "\u0640"
_SUPPLEMENTARY_IDEOGRAPHS = 0x20000
_CATEGORY_WEIGHT = {"M": "mark", "P": "punctuation", "S": "punctuation", "Z": "space", "N": "digit"}


@lru_cache(maxsize=4096)
def character_weight(character: str) -> float:
    """Return the weight of one character: by Unicode category first, then by its block."""
    tables = text_tables()
    if character == _TATWEEL:
        return tables.weights["mark"]
    kind = _CATEGORY_WEIGHT.get(unicodedata.category(character)[0])
    if kind is not None:
        return tables.weights[kind]
    code = ord(character)
    if code > _SUPPLEMENTARY_IDEOGRAPHS:
        return tables.weights["cjk"]
    block = bisect_left(tables.block_ends, code)
    script = tables.block_scripts[block] if block < len(tables.block_scripts) else "default"
    return tables.weights[script]


def text_weight(text: str) -> float:
    """Return the summed weight of a text's characters ("Nice to meet you." weighs 14.1)."""
    total = 0.0
    # Added left to right on purpose: from Python 3.12 on, sum() compensates rounding, and a last bit of difference
    # moves the frame count of a text whose estimate lies on a whole number.
    for character in text:
        total += character_weight(character)
    return total


def estimate_frames(
    text: str, ref_text: str | None = None, ref_frames: int | None = None, speed: float | None = 1.0
) -> int:
    """Return how many codec frames (25 a second) `text` takes, at least 1.

    The pace is that of `ref_text` spoken in `ref_frames`; without both, or with a transcript that weighs nothing, it
    is the model's default. The text is taken as it is: callers turn line breaks into spaces first.
    """
    ref_weight = text_weight(ref_text) if ref_text is not None and ref_frames else 0.0
    if ref_weight <= 0.0 or not ref_frames:
        ref_weight, ref_frames = text_weight(DEFAULT_REF_TEXT), DEFAULT_REF_FRAMES
    estimate = text_weight(text) / (ref_weight / ref_frames)
    if 0.0 < estimate < SHORT_FRAMES:
        estimate = SHORT_FRAMES * (estimate / SHORT_FRAMES) ** (1.0 / 3.0)
    return max(1, int(estimate / (speed or 1.0)))
