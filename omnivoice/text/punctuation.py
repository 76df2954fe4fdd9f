"""Stops and marks around them, in the model's table and beyond it."""

from __future__ import annotations

from omnivoice.text.combine import contains_chinese
from omnivoice.text.tables import text_tables

SPACED_STOPS = frozenset(".,:;")
"""Stops that also stand inside numbers, times and initials: they end something only before white space."""

MORE_STOPS = frozenset("।॥؟،؛۔、｡､።፣፤፧།។၊။։՝")
"""Stops that the model's table lacks: Devanagari, Arabic and Urdu, CJK enumeration, Ethiopic, Tibetan, Khmer, Burmese,
Armenian. Without them such a text is one chunk of ten minutes."""

MORE_CLOSING_MARKS = frozenset(")]}»›』〉〕")

OPENING_QUOTES = frozenset("“‘")
"""The table counts them as closing, as German and others use them; before a word they open."""

_MORE_ENDS = frozenset("।॥؟۔。።།။։｡")


def stops() -> frozenset[str]:
    """Return every character after which a long text may be cut."""
    return text_tables().stops | MORE_STOPS


def closing_marks() -> frozenset[str]:
    """Return the marks that stay with the stop before them."""
    return text_tables().closing_marks | MORE_CLOSING_MARKS


def add_punctuation(text: str) -> str:
    """Return a transcript, stripped, with an end mark: `。` where it holds Chinese, else a full stop.

    A transcript that trails off runs into the text to speak. An empty text stays empty.
    """
    text = text.strip()
    if not text or text[-1] in text_tables().end_punctuation | _MORE_ENDS:
        return text
    return text + ("。" if contains_chinese(text) else ".")
