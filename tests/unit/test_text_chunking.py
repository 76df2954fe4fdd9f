"""Where a long text may be cut, and that nothing is lost there."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnivoice.text import NON_VERBAL_TAGS, chunk_text, is_speakable

SENTENCES = st.lists(
    st.sampled_from(
        [
            "It costs 3.14, not 1,000,000, at 21:30.",
            "We flew to the U.S.A. at 5 p.m. sharp; it rained.",
            "你好，世界。他说：“走吧！”",
            "नमस्ते दुनिया। आप कैसे हैं?",
            "مرحبا، كيف حالك؟ أهلا۔",
            "สวัสดีครับยินดีต้อนรับ",
            "Wait [laughter] what?!",
            "Say [B EY1 S] or ZHE2 now",
            "Dr. No met Mr. Hale, i.e. nobody.",
            "…",
            "🙂🙂",
            "word " * 30,
            "字" * 90,
            "e\u0301" * 40,
            "ok",
        ]
    ),
    min_size=1,
    max_size=12,
)


def without_blanks(text: str) -> str:
    return "".join(text.split())


@given(SENTENCES, st.sampled_from([" ", "  ", "", "\n"]), st.integers(1, 200), st.integers(0, 5))
def test_chunks_are_the_text_but_for_blanks(parts: list[str], blank: str, max_chars: int, min_chars: int) -> None:
    text = blank.join(parts)
    chunks = chunk_text(text, max_chars, min_chars)
    assert without_blanks("".join(chunks)) == without_blanks(text)
    assert all(chunk == chunk.strip() != "" for chunk in chunks)


@given(st.text(max_size=300), st.integers(1, 60))
def test_any_text_survives(text: str, max_chars: int) -> None:
    assert without_blanks("".join(chunk_text(text, max_chars))) == without_blanks(text)


@given(SENTENCES, st.integers(40, 200))
def test_chunks_stay_near_the_limit(parts: list[str], max_chars: int) -> None:
    # Scraps under three characters and pieces with nothing to say may join a full chunk.
    slack = 3 + sum(len(part) + 1 for part in parts if not is_speakable(part))
    assert all(len(chunk) <= max_chars + slack for chunk in chunk_text(" ".join(parts), max_chars))


@given(SENTENCES, st.integers(1, 120))
def test_every_chunk_says_something(parts: list[str], max_chars: int) -> None:
    text = " ".join(parts)
    if is_speakable(text):
        assert all(is_speakable(chunk) for chunk in chunk_text(text, max_chars))


@given(SENTENCES, st.integers(40, 200))
def test_spaced_stops_end_a_chunk_only_before_a_blank(parts: list[str], max_chars: int) -> None:
    text = " ".join(parts)
    position = 0
    for chunk in chunk_text(text, max_chars)[:-1]:
        position = text.index(chunk, position) + len(chunk)
        if re.search(r"[.,:;][\"'”’)\]]*\Z", chunk):
            assert text[position].isspace(), (chunk, text[position:][:10])


@pytest.mark.parametrize("max_chars", [1, 5, 12, 30, 60])
@pytest.mark.parametrize("span", [*NON_VERBAL_TAGS, "[B EY1 S]", "ZHE2", "3.14", "1,000,000", "21:30"])
@pytest.mark.parametrize("blank", [" ", ""])
def test_spans_and_numbers_are_never_cut(span: str, blank: str, max_chars: int) -> None:
    text = blank.join(["字句", span] * 30)
    assert sum(chunk.count(span) for chunk in chunk_text(text, max_chars)) == 30


@pytest.mark.parametrize(
    ("text", "stop"),
    [
        ("यह एक वाक्य है।", "।"),
        ("كيف حالك اليوم؟", "؟"),
        ("مرحبا بكم في المدينة،", "،"),
        ("مرحبا بكم في المدينة؛", "؛"),
        ("یہ ایک جملہ ہے۔", "۔"),
        ("東京の夜はとても静か、", "、"),
        ("今天的天气很好。", "。"),
        ("Is it so?", "?"),
    ],
)
def test_stops_of_all_scripts_cut(text: str, stop: str) -> None:
    # An ASCII stop right before a letter is no stop; the others need no blank behind them.
    for blank in [" "] if stop.isascii() else [" ", ""]:
        chunks = chunk_text(blank.join([text] * 40), 3 * len(text))
        assert len(chunks) > 10
        assert all(chunk.endswith(stop) for chunk in chunks)


@pytest.mark.parametrize(
    ("text", "max_chars", "least"),
    [("字" * 3000, 100, 30), ("สวัสดีครับ" * 300, 100, 30), ("word " * 400, 100, 20), ("Oh! " + "word " * 400, 100, 20)],
    ids=["ideographs", "thai", "words", "short-first"],
)
def test_text_without_stops_is_cut_all_the_same(text: str, max_chars: int, least: int) -> None:
    chunks = chunk_text(text, max_chars)
    assert len(chunks) >= least
    assert all(len(chunk) <= max_chars for chunk in chunks)
    assert all(len(chunk) > max_chars // 2 for chunk in chunks[:-1]), "a short chunk sets no pace"
    assert set(" ".join(chunks).split()) <= set(text.split()) or " " not in text


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("He came home to the U.S.A. and stayed there for good.", "U.S.A. and"),
        ("They met at 5 p.m. sharp in the old market hall there.", "p.m. sharp"),
        ("The book was written by J. R. R. Tolkien long ago now.", "J. R. R. Tolkien"),
        ("He paid it back to (Mr. Hale) on the very same evening.", "(Mr. Hale)"),
        ("Choose a colour you like, e.g. green or a pale yellow.", "e.g. green"),
    ],
)
def test_abbreviations_and_initials_are_not_cut(text: str, kept: str) -> None:
    chunks = chunk_text(f"{text} " * 5, len(text))
    assert sum(kept in chunk for chunk in chunks) == 5


def test_a_sentence_may_end_in_initials() -> None:
    assert chunk_text("We live in the U.S.A. He does not. And so on.", 24) == [
        "We live in the U.S.A.",
        "He does not. And so on.",
    ]


@pytest.mark.parametrize(
    ("text", "chunks"),
    [
        ("他说。“你好。”她走了。", ["他说。", "“你好。”", "她走了。"]),
        ("„Gut.“ Er ging fort.", ["„Gut.“", "Er ging fort."]),
        ("(He left.) She stayed.", ["(He left.)", "She stayed."]),
        ("«Bon.» Elle est partie.", ["«Bon.»", "Elle est partie."]),
    ],
)
def test_quotes_stay_with_their_sentence(text: str, chunks: list[str]) -> None:
    assert chunk_text(text, 5) == chunks


def test_marks_stay_with_their_letter() -> None:
    chunks = chunk_text("e\u0301" * 300, 21)
    assert all(chunk.startswith("e") and chunk.endswith("\u0301") for chunk in chunks)


@pytest.mark.parametrize("text", ["", "   ", "\n"])
def test_nothing_gives_no_chunk(text: str) -> None:
    assert chunk_text(text, 10) == []
