"""Voice design: which items an instruct may name, and how it is written into the prompt."""

from __future__ import annotations

import difflib
import re
from functools import cache

from omnivoice.errors import InvalidRequest
from omnivoice.text.tables import text_tables

MAX_ECHO_CHARS = 40

INSTRUCT_ITEMS: tuple[str, ...] = tuple(
    spelling
    for category in text_tables().instruct_categories
    for item, twin in category.items()
    for spelling in (item, twin)
    if spelling is not None
)
"""Every item by its canonical spelling, English and Chinese, category by category."""

_ALIASES = {
    "man": "male",
    "men": "male",
    "masculine": "male",
    "woman": "female",
    "women": "female",
    "lady": "female",
    "feminine": "female",
    "kid": "child",
    "children": "child",
    "childlike": "child",
    "teen": "teenager",
    "teenage": "teenager",
    "adolescent": "teenager",
    "young": "young adult",
    "adult": "young adult",
    "old": "elderly",
    "senior": "elderly",
    "aged": "elderly",
    "deep": "low pitch",
    "very deep": "very low pitch",
    "low": "low pitch",
    "very low": "very low pitch",
    "medium pitch": "moderate pitch",
    "normal pitch": "moderate pitch",
    "moderate": "moderate pitch",
    "high": "high pitch",
    "very high": "very high pitch",
    "whispering": "whisper",
    "whispered": "whisper",
    "us": "american accent",
    "usa": "american accent",
    "uk": "british accent",
    "english accent": "british accent",
    "brazilian": "portuguese accent",
    "男性": "男",
    "男声": "男",
    "女性": "女",
    "女声": "女",
    "小孩": "儿童",
    "老人": "老年",
    "悄悄话": "耳语",
}
_SEPARATORS = re.compile(r"[,，、;；\n]")
_TRAILING_NOUN = re.compile(r"[ ](?:voice|speaker|person)\Z")


def _fold(item: str) -> str:
    """Fold case, hyphens, underscores and runs of blanks, so that "Middle_Aged" meets "middle-aged"."""
    return " ".join(item.casefold().replace("-", " ").replace("_", " ").split())


@cache
def _accepted() -> dict[str, tuple[int, str]]:
    """Return each accepted spelling, folded, with its category's index and the table's item."""
    accepted: dict[str, tuple[int, str]] = {}
    for index, category in enumerate(text_tables().instruct_categories):
        for item, twin in category.items():
            accepted[_fold(item)] = (index, item)
            if twin is not None:
                accepted[twin] = (index, item)
    for alias, item in _ALIASES.items():
        accepted.setdefault(alias, accepted[_fold(item)])
    for spelling, meaning in list(accepted.items()):
        if spelling.endswith(" accent"):
            accepted.setdefault(spelling.removesuffix(" accent"), meaning)
        elif spelling.endswith(" pitch"):
            accepted.setdefault(f"{spelling}ed", meaning)
        elif spelling.endswith("话"):
            accepted.setdefault(spelling.removesuffix("话"), meaning)
            accepted.setdefault(f"{spelling.removesuffix('话')}方言", meaning)
    return accepted


def resolve_instruct(instruct: str | None, chinese: bool) -> str | None:
    """Return a voice design as the prompt spells it, or None where nothing is asked for.

    Items are separated by commas, in English or Chinese, at most one of a category. The result is Chinese
    ("女，四川话") with a Chinese dialect, English ("male, british accent") with an accent, else in the language of the
    text (`chinese`). Raises `InvalidRequest` for an unknown item, two of one category, or an accent with a dialect.
    """
    if instruct is None:
        return None
    if not isinstance(instruct, str):
        raise InvalidRequest("instruct", "must be a string such as 'female, low pitch', or null")
    chosen: dict[int, str] = {}
    for spelt in filter(None, (part.strip() for part in _SEPARATORS.split(instruct))):
        if spelt.casefold() == "none":
            continue
        category, item = _lookup(spelt)
        if chosen.setdefault(category, item) != item:
            raise InvalidRequest("instruct", f"{chosen[category]!r} and {item!r} exclude each other")
    if not chosen:
        return None
    return _spell(chosen, chinese)


def _lookup(spelt: str) -> tuple[int, str]:
    folded = _fold(spelt)
    accepted = _accepted()
    found = accepted.get(folded) or accepted.get(_TRAILING_NOUN.sub("", folded))
    if found is None:
        nearest = difflib.get_close_matches(folded[:MAX_ECHO_CHARS], INSTRUCT_ITEMS, n=1, cutoff=0.7)
        hint = f" (did you mean {nearest[0]!r}?)" if nearest else ""
        valid = ", ".join(INSTRUCT_ITEMS)
        raise InvalidRequest("instruct", f"unknown item {spelt[:MAX_ECHO_CHARS]!r}{hint}; valid are: {valid}")
    return found


def _spell(chosen: dict[int, str], chinese: bool) -> str:
    """Join the items in the order asked for, all in one language."""
    categories = text_tables().instruct_categories
    untranslated = [item for category, item in chosen.items() if categories[category][item] is None]
    dialects = [item for item in untranslated if not item.isascii()]
    if len(untranslated) > len(dialects) > 0:
        accent = next(item for item in untranslated if item.isascii())
        raise InvalidRequest("instruct", f"a dialect ({dialects[0]}) and an accent ({accent}) exclude each other")
    if dialects or (chinese and not untranslated):
        return "，".join(categories[category][item] or item for category, item in chosen.items())
    return ", ".join(chosen.values())
