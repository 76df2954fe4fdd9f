"""The text part of the prompt, and what counts as text that can be spoken."""

from __future__ import annotations

import re
import unicodedata

from omnivoice.text.duration import character_weight
from omnivoice.text.tags import NON_VERBAL_TAGS

_IDEOGRAPH = "\u4e00-\u9fff"
_CHINESE = re.compile(f"[{_IDEOGRAPH}]")
_LINE_BREAKS = re.compile(r"[\r\n]+")
_BLANKS = re.compile(r"[ \t]+")
_BLANKS_BY_IDEOGRAPH = re.compile(rf"(?<=[{_IDEOGRAPH}])\s+|\s+(?=[{_IDEOGRAPH}])")
_ASCII_BRACKETS = str.maketrans("（）", "()")


def contains_chinese(text: str) -> bool:
    """Tell whether a text holds a CJK ideograph (U+4E00–U+9FFF)."""
    return _CHINESE.search(text) is not None


def combine_text(text: str, ref_text: str | None = None) -> str:
    """Return the prompt's text: the reference transcript, if any, a space, and the text to speak.

    Line breaks and runs of blanks become one space (deleting them would glue words), full-width round brackets become
    ASCII ones, and blanks beside an ideograph are dropped.
    """
    combined = f"{ref_text.strip()} {text.strip()}" if ref_text else text.strip()
    combined = _LINE_BREAKS.sub(" ", combined).translate(_ASCII_BRACKETS)
    return _BLANKS_BY_IDEOGRAPH.sub("", _BLANKS.sub(" ", combined))


def is_speakable(text: str) -> bool:
    """Tell whether there is anything to say: a letter or number with weight, or a known tag.

    Dots, underscores, blanks and emoji alone give the model nothing, and it answers with seconds of noise.
    """
    if any(tag in text for tag in NON_VERBAL_TAGS):
        return True
    return any(unicodedata.category(character)[0] in "LN" and character_weight(character) > 0 for character in text)
