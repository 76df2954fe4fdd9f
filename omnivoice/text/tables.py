"""The model's text tables: character weights, stops, abbreviations and voice-design items.

They ship as package data (`tables.json`) because they are facts about the model, not choices of this project.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources


@dataclass(frozen=True, slots=True)
class TextTables:
    """`tables.json`, parsed.

    `weights` maps a script to the weight of one of its characters; `block_ends` and `block_scripts` run in parallel:
    a code point belongs to the first block whose end is not below it. `instruct_categories` maps, per category, each
    English voice-design item to its Chinese twin; an item without a twin maps to None.
    """

    weights: dict[str, float]
    block_ends: tuple[int, ...]
    block_scripts: tuple[str, ...]
    stops: frozenset[str]
    closing_marks: frozenset[str]
    end_punctuation: frozenset[str]
    abbreviations: frozenset[str]
    instruct_categories: tuple[dict[str, str | None], ...]


def read_package_text(name: str) -> str:
    """Return the UTF-8 text of a data file that lies beside this module."""
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def text_tables() -> TextTables:
    """Return the tables, read once a process."""
    raw = json.loads(read_package_text("tables.json"))
    return TextTables(
        weights=raw["weights"],
        block_ends=tuple(int(end, 16) for end, _ in raw["ranges"]),
        block_scripts=tuple(script for _, script in raw["ranges"]),
        stops=frozenset(raw["split_punctuation"]),
        closing_marks=frozenset(raw["closing_marks"]),
        end_punctuation=frozenset(raw["end_punctuation"]),
        abbreviations=frozenset(raw["abbreviations"]),
        instruct_categories=tuple(
            dict(category) if isinstance(category, dict) else dict.fromkeys(category)
            for category in raw["instruct_categories"]
        ),
    )
