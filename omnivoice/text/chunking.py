"""Cutting a long text into chunks that are generated one by one.

A text is cut into pieces after its stops, the pieces fill chunks greedily, and scraps join a neighbour. A piece too
long for a chunk (a script without stops, or a sentence without end) is taken word by word, a word too long atom by
atom. Tags and pronunciation spans are never cut.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from omnivoice.text.combine import is_speakable
from omnivoice.text.punctuation import OPENING_QUOTES, SPACED_STOPS, closing_marks, stops
from omnivoice.text.tables import text_tables
from omnivoice.text.tags import SPAN

WHOLE_SENTENCE_CHARS = 30
"""A sentence up to this long (about two seconds) is kept whole, however small the chunks."""

_WORD_BEFORE = re.compile(r"\S*\Z")
_DOTTED_INITIALS = re.compile(r"(?:[^\W\d_]\.){2,}\Z")
_SINGLE_INITIAL = re.compile(r"[^\W\d_]\.\Z")
_OPENING_MARKS = "([{<\"'“‘«„¿¡"
_WORD = re.compile(rf"\s*(?:{SPAN.pattern}|\S)+|\s+\Z")
_ATOM = re.compile(rf"\s*(?:{SPAN.pattern}|\d+(?:[.,:/]\d+)*|[A-Za-z0-9]{{1,30}}|\S)|\s+")
_JOINER = "\u200d"
_MAX_CLUSTER_CHARS = 16


def chunk_text(text: str, max_chars: int, min_chars: int = 3) -> list[str]:
    """Return the chunks of a text, stripped, in order; together they are the text but for blanks between them.

    A chunk has at most about `max_chars` characters: a short sentence is not torn for it, and one shorter than
    `min_chars`, or with nothing to say in it, joins the chunk before (the first one the next).
    """
    chunks: list[str] = []
    for unit in _units(text.strip(), max(1, max_chars)):
        if chunks and len(chunks[-1]) + len(unit) <= max_chars:
            chunks[-1] += unit
        else:
            chunks.append(unit)
    stripped = (chunk.strip() for chunk in _join_scraps(chunks, min_chars))
    return [chunk for chunk in stripped if chunk]


def _units(text: str, max_chars: int) -> Iterator[str]:
    """Yield what must stay together: pieces that fit, else their words, else the atoms of a word."""
    for piece in _pieces(text):
        num_chars = len(piece.strip())
        if num_chars <= max_chars or (num_chars <= WHOLE_SENTENCE_CHARS and _ends_with_stop(piece)):
            yield piece
            continue
        for word in _WORD.findall(piece):
            if len(word) <= max_chars:
                yield word
            else:
                yield from _atoms(word)


def _pieces(text: str) -> Iterator[str]:
    """Yield the text cut after each stop and the marks that belong to it; blanks go with the piece behind them."""
    start = 0
    for end in _cuts(text):
        yield text[start:end]
        start = end
    if start < len(text):
        yield text[start:]


def _cuts(text: str) -> Iterator[int]:
    """Yield the positions after which the text may be cut, ascending."""
    all_stops, closing = stops(), closing_marks()
    span_ends = {match.start(): match.end() for match in SPAN.finditer(text)}
    position = 0
    while position < len(text):
        if position in span_ends:
            position = span_ends[position]
            continue
        if text[position] not in all_stops:
            position += 1
            continue
        end = position
        while end < len(text) and end not in span_ends and (text[end] in all_stops or text[end] in closing):
            if text[end] in OPENING_QUOTES and _opens(text, end):
                break
            end += 1
        if _is_cut(text, position, end, all_stops):
            yield end
        position = end


def _opens(text: str, position: int) -> bool:
    """Tell whether the quote at `position` stands before a word, not behind one."""
    return position + 1 < len(text) and text[position + 1].isalnum()


def _is_cut(text: str, start: int, end: int, all_stops: frozenset[str]) -> bool:
    """Judge the run of stops and closing marks text[start:end]."""
    if end == len(text):
        return True
    last_stop = next(mark for mark in reversed(text[start:end]) if mark in all_stops)
    if last_stop in SPACED_STOPS and not text[end].isspace():
        return False
    if last_stop in "!?" and text[end].isascii() and text[end].isalnum():
        return False
    return not (text[start] == "." and last_stop == "." and _is_abbreviation(text, start + 1))


def _is_abbreviation(text: str, end: int) -> bool:
    """Tell whether the full stop at `end` - 1 belongs to the word before it and ends nothing."""
    match = _WORD_BEFORE.search(text[max(0, end - 40) : end])
    word = match.group().lstrip(_OPENING_MARKS) if match else ""
    if word in text_tables().abbreviations:
        return True
    following = text[end : end + 80].lstrip()[:1]
    if _DOTTED_INITIALS.fullmatch(word):
        return following.islower()
    return _SINGLE_INITIAL.fullmatch(word) is not None and word[0].isupper() and following.isupper()


def _ends_with_stop(piece: str) -> bool:
    return piece.rstrip("".join(closing_marks()))[-1:] in stops()


def _atoms(word: str) -> Iterator[str]:
    """Yield the parts of an endless word: spans, numbers, Latin words, else characters with their marks."""
    atom = ""
    for part in _ATOM.findall(word):
        extends = unicodedata.category(part[0])[0] == "M" or part[0] == _JOINER or atom.endswith(_JOINER)
        if atom and extends and len(atom) < _MAX_CLUSTER_CHARS:
            atom += part
            continue
        if atom:
            yield atom
        atom = part
    if atom:
        yield atom


def _join_scraps(chunks: list[str], min_chars: int) -> list[str]:
    """Join chunks that are too short, or say nothing, to the one before; the first to the one behind."""
    joined: list[str] = []
    for chunk in chunks:
        if joined and (_is_scrap(chunk, min_chars) or (len(joined) == 1 and _is_scrap(joined[0], min_chars))):
            joined[-1] += chunk
        else:
            joined.append(chunk)
    return joined


def _is_scrap(chunk: str, min_chars: int) -> bool:
    return len(chunk) < min_chars or not is_speakable(chunk)
