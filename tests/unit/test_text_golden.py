"""The text front end against the reference package's numbers."""

from __future__ import annotations

from typing import Any

import pytest
from golden_cases import cases

from omnivoice.errors import InvalidRequest
from omnivoice.text import (
    add_punctuation,
    chunk_text,
    combine_text,
    estimate_frames,
    resolve_instruct,
    resolve_language,
    text_weight,
    unmask_counts,
)


def _label(case: dict[str, Any]) -> str:
    text = (
        case.get("text")
        or case.get("language")
        or case.get("instruct")
        or f"{case.get('num_step')}-{case.get('frames')}"
    )
    return ascii(text)[1:25]


def golden(kind: str) -> pytest.MarkDecorator:
    found = cases(kind)
    assert found, f"no golden case of kind {kind}"
    return pytest.mark.parametrize("case", found, ids=_label)


@golden("duration")
def test_duration(case: dict[str, Any]) -> None:
    text = case["text"]
    assert text_weight(text) == pytest.approx(case["weight"], rel=1e-12)
    assert estimate_frames(text) == case["target_frames"]
    assert estimate_frames(text, speed=1.5) == case["target_frames_speed_1_5"]
    assert estimate_frames(text, case["ref_text"], case["ref_frames"]) == case["target_frames_ref"]


@golden("language")
def test_language(case: dict[str, Any]) -> None:
    assert resolve_language(case["language"]) == case["resolved"]


@golden("instruct")
def test_instruct(case: dict[str, Any]) -> None:
    if case["error"]:
        with pytest.raises(InvalidRequest, match=r"^instruct: "):
            resolve_instruct(case["instruct"], case["text_is_chinese"])
    else:
        assert resolve_instruct(case["instruct"], case["text_is_chinese"]) == case["resolved"]


@golden("combine_text")
def test_combine_text(case: dict[str, Any]) -> None:
    assert combine_text(case["text"], case["ref_text"]) == case["combined"]


@golden("chunk_text")
def test_chunk_text(case: dict[str, Any]) -> None:
    assert chunk_text(case["text"], case["chunk_len"], case["min_chunk_len"]) == case["chunks"]


@golden("generate_long")
def test_long_text_falls_into_as_many_chunks(case: dict[str, Any]) -> None:
    max_chars = int(case["config"]["audio_chunk_duration"] * 25 * len(case["text"]) / case["target_frames"])
    assert len(chunk_text(case["text"], max_chars)) == case["chunks"]


@golden("add_punctuation")
def test_add_punctuation(case: dict[str, Any]) -> None:
    assert add_punctuation(case["text"]) == case["result"]


@golden("schedule")
def test_schedule(case: dict[str, Any]) -> None:
    assert list(unmask_counts(case["frames"], case["num_step"], case["t_shift"])) == case["unmask_counts"]
