"""Which language a caller means: ids, names, ISO 639 codes, BCP 47 tags and common names."""

from __future__ import annotations

import difflib
import unicodedata
from dataclasses import dataclass
from functools import cache

from omnivoice.errors import InvalidRequest
from omnivoice.text.tables import read_package_text

NO_LANGUAGE = ("", "none", "auto")
"""What stands for "no language named", besides None."""

MAX_ECHO_CHARS = 40


@dataclass(frozen=True, slots=True)
class Language:
    """One of the model's languages: the id that goes into the prompt, its English name, its ISO 639-3 code."""

    id: str
    name: str
    iso_639_3: str


def _rows(name: str) -> list[list[str]]:
    return [line.split("\t") for line in read_package_text(name).splitlines()[1:] if line]


LANGUAGES: tuple[Language, ...] = tuple(Language(*row) for row in _rows("languages.tsv"))
"""The 646 languages of the model, by id."""


@cache
def _spellings() -> dict[str, str]:
    """Return every accepted spelling, folded, with its language id; the model's own ids and names win."""
    spellings: dict[str, str] = {}
    for accepted in (
        [(language.id, language.id) for language in LANGUAGES],
        [(language.name, language.id) for language in LANGUAGES],
        [(language.iso_639_3, language.id) for language in LANGUAGES],
        [(alias, language_id) for alias, language_id in _rows("language_aliases.tsv")],
        [(_without_accents(language.name), language.id) for language in LANGUAGES],
    ):
        for spelling, language_id in accepted:
            spellings.setdefault(_fold(spelling), language_id)
    return spellings


def _fold(spelling: str) -> str:
    folded = unicodedata.normalize("NFC", spelling).casefold().replace("’", "'")
    return " ".join(folded.split())


def _without_accents(name: str) -> str:
    return "".join(c for c in unicodedata.normalize("NFD", name) if not unicodedata.combining(c))


def resolve_language(language: str | None) -> str | None:
    """Return the model's id of a language ("EN", "English ", "eng", "en-US" → "en"), or None where none is named.

    A BCP 47 tag is matched by its longest known start, so that "zh-yue" is Cantonese and "zh-Hant-TW" Chinese. Raises
    `InvalidRequest` for an unknown language and names the nearest known one.
    """
    if language is None:
        return None
    if not isinstance(language, str):
        raise InvalidRequest("language", "must be a string such as 'en' or 'English', or null")
    folded = _fold(language)
    if folded in NO_LANGUAGE:
        return None
    spellings = _spellings()
    if folded in spellings:
        return spellings[folded]
    subtags = folded.replace("_", "-").split("-")
    if _looks_like_tag(subtags):
        for length in range(len(subtags), 0, -1):
            start = "-".join(subtags[:length])
            if start in spellings:
                return spellings[start]
    raise InvalidRequest("language", _unknown_message(language, folded))


def _looks_like_tag(subtags: list[str]) -> bool:
    """BCP 47: a primary language of 2 or 3 letters, then subtags of 1 to 8 ASCII letters or digits."""
    primary, *rest = subtags
    return (
        len(primary) in (2, 3)
        and primary.isascii()
        and primary.isalpha()
        and all(1 <= len(subtag) <= 8 and subtag.isascii() and subtag.isalnum() for subtag in rest)
    )


def _unknown_message(language: str, folded: str) -> str:
    spellings = _spellings()
    nearest = difflib.get_close_matches(folded[:MAX_ECHO_CHARS], spellings, n=1, cutoff=0.0)[0]
    found = next(known for known in LANGUAGES if known.id == spellings[nearest])
    return (
        f"unknown language {language.strip()[:MAX_ECHO_CHARS]!r}: an id, name or ISO 639-3 code is needed; "
        f"the nearest is {found.name!r} (id {found.id!r})"
    )
