"""What a request will take is known, and bounded, before anything is allocated."""

from __future__ import annotations

import math

import numpy as np
import pytest

from omnivoice import InvalidRequest, SamplingParams, SynthesisRequest, VoicePrompt
from omnivoice.planning import Plan, Reference, plan
from omnivoice.text import estimate_frames

LONG_TEXT = "The valley woke slowly that day. Smoke rose from three chimneys, and a dog barked twice at nothing. " * 12


def refused(request: SynthesisRequest, reference: Reference | None = None) -> str:
    with pytest.raises(InvalidRequest) as caught:
        plan(request, reference)
    return caught.value.field


def test_a_short_text_is_one_chunk_of_the_rules_length() -> None:
    made = plan(SynthesisRequest("The ferry leaves at noon, so bring your coat.", language="English"))
    assert [chunk.frames for chunk in made.chunks] == [66]  # golden's figure for this sentence
    assert (made.language, made.seconds) == ("en", 66 / 25)


@pytest.mark.parametrize("voice", [None, Reference("A short reference line.", 60)])
@pytest.mark.parametrize(("field", "value"), [("duration", 60.0), ("duration", 90.0), ("speed", 0.5), ("speed", 1.7)])
def test_a_total_that_the_caller_sets_is_met_by_all_chunks_together(
    field: str, value: float, voice: Reference | None
) -> None:
    """Not applied again to every chunk: the sum is right within 10% (exact to a frame a chunk here)."""
    made = plan(SynthesisRequest(LONG_TEXT, **{field: value}), voice)
    assert len(made.chunks) > 1
    if field == "duration":
        wanted = value
    else:
        wanted = (estimate_frames(LONG_TEXT, voice.text, voice.frames) if voice else estimate_frames(LONG_TEXT)) / 25
        wanted /= value
    assert made.seconds == pytest.approx(wanted, rel=0.1)


def test_a_first_chunk_under_two_seconds_is_no_pace_reference() -> None:
    made = plan(SynthesisRequest("Oh! " + "word " * 400, params=SamplingParams(audio_chunk_duration=5.0)))
    alone = estimate_frames("Oh! " + "word " * 400) / 25
    assert made.seconds == pytest.approx(alone, rel=0.15)


def test_tags_and_line_breaks_are_forgiven_with_a_warning_for_what_is_unknown() -> None:
    made = plan(SynthesisRequest("Hello\nworld [ Laughter ] and [breath]."))
    assert made.text == "Hello world [laughter] and [breath]."
    assert len(made.warnings) == 1
    assert "[breath]" in made.warnings[0]


@pytest.mark.parametrize("text", ["", "   ", "...", "____", "🙂", "\n\n", "?!"])
def test_nothing_to_speak_is_refused(text: str) -> None:
    assert refused(SynthesisRequest(text)) == "text"


def test_a_tag_alone_is_speakable() -> None:
    assert plan(SynthesisRequest("[laughter]")).frames >= 1


@pytest.mark.parametrize(
    ("field", "value"),
    [("speed", value) for value in (1e-6, 0, -1, math.nan, math.inf, 4.1, True, "1")]
    + [("duration", value) for value in (0, -1, 1e9, math.nan, 3601)]
    + [("seed", value) for value in (-1, 2**64, 1.5, "7")],
)
def test_a_number_out_of_range_is_refused(field: str, value: object) -> None:
    assert refused(SynthesisRequest("Hello.", **{field: value})) == field


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_step", 0), ("num_step", 129), ("num_step", 10**6), ("num_step", 1.5), ("num_step", True),
        ("guidance_scale", -0.1), ("guidance_scale", math.nan), ("t_shift", 0.0), ("layer_penalty_factor", math.inf),
        ("position_temperature", -1.0), ("class_temperature", "1"), ("denoise", 1), ("postprocess_output", None),
        ("audio_chunk_duration", 0.5), ("audio_chunk_threshold", 1e9), ("pad_duration", 11.0), ("fade_duration", -1.0),
    ],
)  # fmt: skip
def test_a_parameter_out_of_range_is_refused(field: str, value: object) -> None:
    with pytest.raises(InvalidRequest) as caught:
        SamplingParams(**{field: value})
    assert caught.value.field == field


def test_defaults_beside_values_in_one_batch() -> None:
    assert plan(SynthesisRequest("Hello there.", speed=None)).frames == plan(SynthesisRequest("Hello there.")).frames


@pytest.mark.parametrize("count", [3_000, 12_000])
def test_a_text_without_stops_is_cut_all_the_same(count: int) -> None:
    made = plan(SynthesisRequest("字" * count))
    assert len(made.chunks) > count / 300
    assert max(chunk.frames for chunk in made.chunks) <= 30 * 25
    assert "".join(chunk.text for chunk in made.chunks) == "字" * count


def test_audio_beyond_the_limit_is_refused_before_anything_is_made() -> None:
    assert refused(SynthesisRequest("字" * 40_000, speed=0.25)) == "text"
    assert refused(SynthesisRequest("a" * 50_001)) == "text"
    assert refused(SynthesisRequest("Hi", duration=600.0)) == "duration"  # no text to cut: 600 s in one piece


def test_short_chunks_do_not_slip_past_the_limit() -> None:
    """Each short chunk is lifted, so that together they take far longer than the whole text's estimate says."""
    params = SamplingParams(audio_chunk_duration=1.0)
    assert plan(SynthesisRequest("word " * 9_000)).seconds < 3_600
    assert refused(SynthesisRequest("word " * 9_000, params=params)) == "text"


def test_nul_is_refused() -> None:
    assert refused(SynthesisRequest("One.\0Two.")) == "text"
    assert refused(SynthesisRequest("Hello."), Reference("a\0b", 60)) == "ref_text"


@pytest.mark.parametrize("text", ["half \ud83d of a pair", "\udc00"])
def test_half_a_surrogate_pair_is_refused(text: str) -> None:
    assert refused(SynthesisRequest(text)) == "text"
    assert refused(SynthesisRequest("Hello."), Reference(text, 60)) == "ref_text"


@pytest.mark.parametrize("text", [None, 7, b"bytes", ["a"]])
def test_a_text_is_a_string(text: object) -> None:
    assert refused(SynthesisRequest(text)) == "text"  # type: ignore[arg-type]


def test_a_voice_sets_the_pace() -> None:
    voice = VoicePrompt(np.zeros((8, 60), dtype=np.int64), "A short reference line.")
    text = "The ferry leaves at noon, so bring your coat."
    assert plan(SynthesisRequest(text, voice=voice)).frames == 112  # golden's figure
    assert plan(SynthesisRequest(text), Reference(voice.ref_text, voice.frames)).frames == 112


def test_num_tokens_covers_both_branches_and_prompts() -> None:
    made: Plan = plan(SynthesisRequest("Hello there."), Reference("A short reference line.", 60))
    assert made.num_tokens >= 2 * made.frames + 60
