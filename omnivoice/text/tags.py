"""Bracketed tags in a text: the thirteen non-verbal sounds, pronunciation spans, and what users write instead."""

from __future__ import annotations

import difflib
import re

NON_VERBAL_TAGS: tuple[str, ...] = (
    "[laughter]",
    "[sigh]",
    "[confirmation-en]",
    "[question-en]",
    "[question-ah]",
    "[question-oh]",
    "[question-ei]",
    "[question-yi]",
    "[surprise-ah]",
    "[surprise-oh]",
    "[surprise-wa]",
    "[surprise-yo]",
    "[dissatisfaction-hnn]",
)
"""What the model was trained to voice; case-sensitive in the prompt."""

SPAN = re.compile(r"\[[\w\-' ]{1,80}\]")
"""A tag or pronunciation span: brackets around words, without punctuation. Nothing may be cut inside one."""

MAX_TAG_WARNINGS = 10

_KNOWN = re.compile("(" + "|".join(map(re.escape, NON_VERBAL_TAGS)) + ")")
_BRACKETED = re.compile(r"\[[ \t]*([^\W\d_](?:[^\W\d]|[-' \t]){0,40}?)[ \t]*\]")
_PHONE = re.compile("(?:A[AEHOWY]|E[HRY]|I[HY]|O[WY]|U[HW])[0-2]?|B|CH|DH?|F|G|HH|JH|K|L|M|NG?|P|R|SH?|TH?|V|W|Y|ZH?")
"""One sound of the CMU dictionary, vowels with their stress."""
_LINE_BREAKS = re.compile(r"[\r\n\v\f\x85\u2028\u2029]+")


def split_tags(text: str) -> list[str]:
    """Split a text into known tags and what lies between, so that each tag is tokenised on its own.

    `"".join(split_tags(text)) == text` always holds.
    """
    return [piece for piece in _KNOWN.split(text) if piece]


def _is_pronunciation(content: str) -> bool:
    return all(_PHONE.fullmatch(phone) for phone in content.split())


def clean_text(text: str) -> tuple[str, tuple[str, ...]]:
    """Return the text as the model should read it, and a warning for each unknown tag.

    A run of line breaks becomes one space. A known tag is put into its canonical spelling ("[ Laughter ]" →
    "[laughter]"); any other bracketed word ("[breath]") is kept, read as text and named in a warning. CMU spans such
    as "[B EY1 S]" and bracketed numbers are left alone.
    """
    unknown: dict[str, str] = {}

    def canonical(match: re.Match[str]) -> str:
        content = match.group(1)
        tag = f"[{content.casefold()}]"
        if tag in NON_VERBAL_TAGS:
            return tag
        if not _is_pronunciation(content):
            unknown.setdefault(match.group(0), tag)
        return match.group(0)

    cleaned = _BRACKETED.sub(canonical, _LINE_BREAKS.sub(" ", text))
    return cleaned, _tag_warnings(unknown)


def _tag_warnings(unknown: dict[str, str]) -> tuple[str, ...]:
    warnings = []
    for spelt, tag in list(unknown.items())[:MAX_TAG_WARNINGS]:
        nearest = difflib.get_close_matches(tag, NON_VERBAL_TAGS, n=1, cutoff=0.6)
        hint = f"; did you mean {nearest[0]}?" if nearest else ""
        warnings.append(f"{spelt} is not a known tag and is read as text{hint}")
    if len(unknown) > MAX_TAG_WARNINGS:
        warnings.append(f"{len(unknown) - MAX_TAG_WARNINGS} more unknown tags are read as text")
    return tuple(warnings)
