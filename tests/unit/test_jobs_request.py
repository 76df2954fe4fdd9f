"""The body that asks for a job: what is taken, and how a refusal reads."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from omnivoice.errors import InvalidRequest
from omnivoice.parameters import BOUNDS, MAX_TEXT_CHARS, SamplingParams
from worker.jobs.errors import InvalidJob
from worker.jobs.models import JobRequest, Queue

TEXT = "Nice to meet you."


def problems(**body: Any) -> dict[str, str]:
    """Field → message of a body that must be refused."""
    with pytest.raises(InvalidJob) as refused:
        JobRequest.parse({"text": TEXT, **body})
    assert "\n" not in str(refused.value)
    return dict(refused.value.problems)


def test_a_text_alone_is_enough() -> None:
    request = JobRequest.parse({"text": TEXT})
    assert (request.text, request.queue, request.format, request.sample_rate) == (
        TEXT,
        Queue.INTERACTIVE,
        "wav",
        24_000,
    )
    assert request.to_synthesis_request().params == SamplingParams()


def test_every_field_reaches_the_engine() -> None:
    params = SamplingParams(num_step=8, guidance_scale=1, denoise=False, audio_chunk_duration=10.5)
    body = {"text": TEXT, "language": "en", "instruct": "male", "duration": 2, "speed": 1.5, "seed": 2**64 - 1}
    body["normalize_text"] = True
    request = JobRequest.parse({**body, **dataclasses.asdict(params)}).to_synthesis_request()
    assert request.params == params
    assert {name: getattr(request, name) for name in body} == body


@pytest.mark.parametrize("field", ["text", "language", "instruct", "ref_text"])
def test_nul_is_refused_in_every_text(field: str) -> None:
    assert problems(**{field: "Nice to\0meet you."}) == {field: "must not hold NUL characters (U+0000)"}
    for metadata in ({"a\0": "b"}, {"a": "\0"}):
        assert problems(metadata=metadata) == {"metadata": "must not hold NUL characters (U+0000)"}


def test_null_is_the_default() -> None:
    names = [field.name for field in dataclasses.fields(SamplingParams)]
    request = JobRequest.parse({"text": TEXT, "speed": None, "seed": None, **dict.fromkeys(names)})
    assert request == JobRequest.parse({"text": TEXT})


@pytest.mark.parametrize("name", sorted(BOUNDS))
def test_the_bounds_of_the_engine_hold(name: str) -> None:
    low, high = BOUNDS[name]
    for value in (low, high):
        JobRequest.parse({"text": TEXT, name: value})
    for value in (low - 1, high * 2 + 1, float("nan"), float("inf"), -float("inf"), "1", True, []):
        told = re.fullmatch(r"must be a (?:whole )?number from (\S+) to (\S+)", problems(**{name: value})[name])
        assert told
        assert (type(low)(told[1]), type(high)(told[2])) == (low, high)


@pytest.mark.parametrize("value", [0, -1, 1e9])
def test_a_job_expires_after_a_while_and_within_a_month(value: float) -> None:
    assert problems(expires_in=value) == {"expires_in": "must be a number more than 0 and at most 2592000"}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("num_step", "32"),
        ("num_step", True),
        ("num_step", 8.5),
        ("seed", 1.5),
        ("speed", "1"),
        ("speed", True),
        ("duration", []),
        ("denoise", 1),
        ("denoise", "true"),
        ("language", 5),
        ("format", None),
        ("format", "mp5"),
        ("format", "../wav"),
        ("sample_rate", 0),
        ("sample_rate", 12_345),
        ("sample_rate", "24000"),
        ("queue", "fast"),
        ("queue", None),
        ("expires_in", 0),
        ("expires_in", -1),
        ("expires_in", "60"),
        ("ref_text", ""),
        ("ref_text", "x" * 2_001),
        ("language", "x" * 65),
        ("metadata", []),
        ("metadata", None),
        ("metadata", {str(number): "" for number in range(17)}),
    ],
)
def test_what_is_refused_names_its_field(field: str, value: object) -> None:
    assert set(problems(**{field: value})) == {field}


@pytest.mark.parametrize(
    ("metadata", "field"),
    [
        ({"a": 1}, "metadata.a"),
        ({"a": "x" * 513}, "metadata.a"),
        ({"a": None}, "metadata.a"),
        ({"": "x"}, "metadata"),
        ({"x" * 65: ""}, "metadata." + "x" * 55),  # names are cut at 64 characters
    ],
)
def test_metadata_is_limited(metadata: dict[str, Any], field: str) -> None:
    assert list(problems(metadata=metadata)) == [field]


@pytest.mark.parametrize("text", ["", "   ", "\n\t", "...", "____", "🙂", "\ud800", None, 5, ["Hello."]])
def test_a_text_without_speech_is_refused(text: object) -> None:
    assert set(problems(text=text)) == {"text"}


@pytest.mark.parametrize("text", ["[laughter]", "7", "字", "Hello\nworld", "hi<|text_end|>", "a" * MAX_TEXT_CHARS])
def test_a_text_with_speech_is_taken_as_it_is(text: str) -> None:
    assert JobRequest.parse({"text": text}).text == text


def test_a_text_that_is_too_long_is_refused() -> None:
    assert str(MAX_TEXT_CHARS) in problems(text="a" * (MAX_TEXT_CHARS + 1))["text"]


def test_a_text_is_required() -> None:
    with pytest.raises(InvalidRequest, match="text: is required"):
        JobRequest.parse({"seed": 1})


@pytest.mark.parametrize(
    ("unknown", "nearest"),
    [("num_steps", "num_step"), ("guidance", "guidance_scale"), ("Speed", "speed"), ("langauge", "language")],
)
def test_an_unknown_field_names_the_nearest(unknown: str, nearest: str) -> None:
    assert problems(**{unknown: 4}) == {unknown: f"is not a field; did you mean {nearest}?"}


def test_a_field_like_no_other_is_refused_without_advice() -> None:
    assert problems(qqqqqqqq=1) == {"qqqqqqqq": "is not a field"}


def test_every_problem_is_told() -> None:
    found = problems(num_steps=4, speed=9, format="mp5")
    assert set(found) == {"num_steps", "speed", "format"}


@pytest.mark.parametrize("body", [None, [], "text", 5, [{"text": TEXT}]])
def test_a_body_that_is_no_object_is_refused(body: object) -> None:
    with pytest.raises(InvalidJob, match="JSON object"):
        JobRequest.parse(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def parse_or_refusal(body: object) -> JobRequest | InvalidJob:
    try:
        return JobRequest.parse(body)
    except InvalidJob as refusal:
        return refusal


@given(st.dictionaries(st.sampled_from(sorted(JobRequest.model_fields)) | st.text(max_size=8), JSON, max_size=5))
def test_any_body_is_taken_or_refused_in_one_line_and_survives_storage(body: dict[str, Any]) -> None:
    answer = parse_or_refusal({"text": TEXT, **body})
    if isinstance(answer, InvalidJob):
        assert answer.problems
        assert len(str(answer).splitlines()) == 1
    else:
        assert JobRequest.model_validate_json(answer.model_dump_json(exclude_none=True)) == answer


def test_the_schema_states_the_bounds_once_more_for_clients() -> None:
    schema = JobRequest.model_json_schema()
    assert schema["required"] == ["text"]
    assert schema["additionalProperties"] is False
    number = schema["properties"]["num_step"]["anyOf"][0]
    assert (number["minimum"], number["maximum"]) == (1, 128)
    assert "wav" in schema["properties"]["format"]["enum"]
    json.dumps(schema)
