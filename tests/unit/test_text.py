"""Lengths, prompts, tags, languages, voice designs and schedules, beyond the golden cases."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnivoice.errors import InvalidRequest
from omnivoice.text import (
    INSTRUCT_ITEMS,
    LANGUAGES,
    NON_VERBAL_TAGS,
    add_punctuation,
    clean_text,
    combine_text,
    contains_chinese,
    estimate_frames,
    is_speakable,
    resolve_instruct,
    resolve_language,
    split_tags,
    text_weight,
    unmask_counts,
)


def test_the_front_end_loads_no_torch() -> None:
    modules = "omnivoice.text, omnivoice.audio.files, omnivoice.audio.postprocess, omnivoice.audio.resample"
    code = f"import sys, {modules}; sys.exit('torch' in sys.modules)"
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", code], cwd=root, check=False).returncode == 0


@pytest.mark.parametrize(
    ("text", "weight"),
    [
        ("Nice to meet you.", 14.1),
        ("\n", 1.0),
        ("\u200d", 2.2),
        ("\U00020001", 3.0),
        ("\U00010400", 1.0),
        ("ـ", 0.0),
        ("e\u0301", 1.0),
        ("٣", 3.5),
        ("\u2028", 0.2),
        ("", 0.0),
    ],
)
def test_weights(text: str, weight: float) -> None:
    assert text_weight(text) == pytest.approx(weight)


@given(st.text(max_size=200), st.floats(0.25, 4.0))
def test_frames_follow_speed(text: str, speed: float) -> None:
    frames = estimate_frames(text, speed=speed)
    assert frames >= 1
    assert abs(frames - estimate_frames(text) / speed) <= 1 / speed + 1


@pytest.mark.parametrize("ref_text", ["", "ـــ", None])
def test_a_transcript_without_weight_is_no_pace(ref_text: str | None) -> None:
    assert estimate_frames("A normal sentence.", ref_text, 75) == estimate_frames("A normal sentence.")


@pytest.mark.parametrize("breaks", ["\n", "\r\n", "\r", "\n\n\n", " \n "])
def test_line_breaks_become_one_space(breaks: str) -> None:
    assert combine_text(f"Hello{breaks}world") == "Hello world"
    assert combine_text("Fine.", f"Hello{breaks}world") == "Hello world Fine."
    assert "Hello world" in " ".join(clean_text(f"Hello{breaks}world")[0].split())


@given(st.text(max_size=100))
def test_combined_text_has_neither_breaks_nor_double_blanks(text: str) -> None:
    combined = combine_text(text)
    assert not any(mark in combined for mark in ("\n", "\r", "\t", "  "))
    assert combine_text(combined) == combined.strip()


@given(st.lists(st.one_of(st.sampled_from(NON_VERBAL_TAGS), st.text(max_size=8)), max_size=8))
def test_split_tags_rejoins_and_isolates(parts: list[str]) -> None:
    text = "".join(parts)
    pieces = split_tags(text)
    assert "".join(pieces) == text
    assert all(piece in NON_VERBAL_TAGS or not any(tag in piece for tag in NON_VERBAL_TAGS) for piece in pieces)


@pytest.mark.parametrize(
    ("text", "cleaned", "unknown"),
    [
        ("[Laughter] hi", "[laughter] hi", []),
        ("[ sigh ]", "[sigh]", []),
        ("[QUESTION-EN]", "[question-en]", []),
        ("[laugh] hi", "[laugh] hi", ["[laugh]"]),
        ("a [breath] b [breath]", "a [breath] b [breath]", ["[breath]"]),
        ("[B EY1 S] and [S]", "[B EY1 S] and [S]", []),
        ("as shown [12]", "as shown [12]", []),
        ("[]", "[]", []),
        ("ZHE2", "ZHE2", []),
    ],
)
def test_tags_are_forgiven_or_named(text: str, cleaned: str, unknown: list[str]) -> None:
    found, warnings = clean_text(text)
    assert found == cleaned
    assert len(warnings) == len(unknown)
    assert all(warning.startswith(tag) for warning, tag in zip(warnings, unknown, strict=True))


def test_tag_warnings_are_bounded() -> None:
    _, warnings = clean_text(" ".join(f"[tag{chr(97 + n)}]" for n in range(26)).replace("tag", "x"))
    assert len(warnings) == 11
    assert warnings[-1].startswith("16 more")


@pytest.mark.parametrize(
    ("text", "speakable"),
    [
        ("...", False),
        ("____", False),
        ("   ", False),
        ("", False),
        ("🙂", False),
        ("👩‍👩‍👧", False),
        ("ـــ", False),
        ("?!…。", False),
        ("[laughter]", True),
        ("7", True),
        ("字", True),
        ("Ⅷ", True),
        ("...ok", True),
    ],
)
def test_what_can_be_spoken(text: str, speakable: bool) -> None:
    assert is_speakable(text) is speakable


@pytest.mark.parametrize(
    ("text", "ended"),
    [("  hi  ", "hi."), ("यह है।", "यह है।"), ("كيف حالك؟", "كيف حالك؟"), ("ok 好", "ok 好。"), ("wait…", "wait…")],
)
def test_end_punctuation(text: str, ended: str) -> None:
    assert add_punctuation(text) == ended


@pytest.mark.parametrize(
    ("language", "resolved"),
    [
        (None, None),
        ("", None),
        ("  ", None),
        ("none", None),
        ("auto", None),
        ("EN", "en"),
        ("en-US", "en"),
        ("en_gb", "en"),
        ("zh-CN", "zh"),
        ("zh-Hant-TW", "zh"),
        ("zh-yue", "yue"),
        ("yue-HK", "yue"),
        ("hun", "hu"),
        ("deu", "de"),
        ("ger", "de"),
        ("English ", "en"),
        ("Mandarin", "zh"),
        ("Cantonese", "yue"),
        ("pt-BR", "pt"),
        ("Arabic", "arb"),
        ("ar-EG", "arz"),
        ("Farsi", "fa"),
        ("baoule", "bci"),
        ("日本語", "ja"),
        ("Standard  Arabic", "arb"),
    ],
)
def test_languages(language: str | None, resolved: str | None) -> None:
    assert resolve_language(language) == resolved


@pytest.mark.parametrize("spelling", ["id", "name", "iso_639_3"])
def test_every_language_answers_to_its_own_names(spelling: str) -> None:
    for language in LANGUAGES:
        assert resolve_language(getattr(language, spelling)) == language.id
        assert resolve_language(f" {getattr(language, spelling).upper()} ") == language.id
    assert len({language.id for language in LANGUAGES}) == 646


@pytest.mark.parametrize(
    ("language", "nearest"), [("Englsh", "English"), ("Germn", "German"), ("qq", ""), ("en--us", "")]
)
def test_an_unknown_language_is_refused_with_the_nearest(language: str, nearest: str) -> None:
    with pytest.raises(InvalidRequest, match=rf"unknown language '{language}'.*nearest is '{nearest}") as refusal:
        resolve_language(language)
    assert refusal.value.field == "language"


def test_every_language_alias_leads_to_a_language() -> None:
    from omnivoice.text.languages import _rows

    ids = {language.id for language in LANGUAGES}
    rows = _rows("language_aliases.tsv")
    assert len(rows) > 100
    assert [row for row in rows if len(row) != 2 or row[1] not in ids] == []


@pytest.mark.parametrize(
    ("instruct", "chinese", "resolved"),
    [
        (None, False, None),
        (" , ", False, None),
        ("None", False, None),
        ("middle aged", False, "middle-aged"),
        ("Middle_Aged, MALE", False, "middle-aged, male"),
        ("british", False, "british accent"),
        ("British Accent", True, "british accent"),
        ("woman, whispering", False, "female, whisper"),
        ("female voice", False, "female"),
        ("male, low pitch", True, "男，低音调"),
        ("男，低音调", False, "male, low pitch"),
        ("male, 四川", False, "男，四川话"),
        ("male, 男", False, "male"),
    ],
)
def test_instructs(instruct: str | None, chinese: bool, resolved: str | None) -> None:
    assert resolve_instruct(instruct, chinese) == resolved


@pytest.mark.parametrize("chinese", [False, True])
@pytest.mark.parametrize("item", INSTRUCT_ITEMS)
def test_every_item_is_valid_and_stable(item: str, chinese: bool) -> None:
    resolved = resolve_instruct(item, chinese)
    assert resolved in INSTRUCT_ITEMS
    assert resolve_instruct(resolved, chinese) == resolved


@pytest.mark.parametrize("instruct", ["a warm narrator", "femal", "male; robot"])
def test_an_unknown_item_is_refused_with_what_is_valid(instruct: str) -> None:
    with pytest.raises(InvalidRequest) as refusal:
        resolve_instruct(instruct, False)
    assert refusal.value.field == "instruct"
    assert all(item in refusal.value.message for item in INSTRUCT_ITEMS)


def test_chinese_is_a_matter_of_ideographs() -> None:
    assert contains_chinese("a 字")
    assert not contains_chinese("かな ㄅ 한 abc")


@given(st.integers(1, 3000), st.integers(1, 128), st.floats(0.01, 10.0))
def test_schedules_reveal_every_cell_once(frames: int, num_step: int, t_shift: float) -> None:
    counts = unmask_counts(frames, num_step, t_shift)
    assert len(counts) == num_step
    assert sum(counts) == 8 * frames
    assert min(counts) >= 0


def test_the_schedule_keeps_time_as_torch_does() -> None:
    torch = pytest.importorskip("torch")
    from omnivoice.text.schedule import _timesteps

    for num_step in range(1, 129):
        assert _timesteps(num_step).tolist() == torch.linspace(0, 1, num_step + 1).tolist()
