"""A request gives the same codes whatever surrounds it, and a bad one fails alone."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import golden_cases as golden
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omnivoice import (
    Engine,
    EngineConfig,
    GenerationFailed,
    InvalidRequest,
    RequestAborted,
    SamplingParams,
    SynthesisRequest,
    VoicePrompt,
)

TEXTS = ("Hi", "Good morning to you.", "今天的天气很好。", "Wait [laughter] really?", "a b c. " * 6)


def load(dtype: str, mode: str, **limits: int) -> Engine:
    return Engine.from_checkpoint(golden.CHECKPOINT, EngineConfig(device="cpu", dtype=dtype, mode=mode, **limits))


@pytest.fixture(scope="module")
def engines() -> dict[str, Engine]:
    return {mode: load("float64", mode) for mode in ("request", "step")}


def voice() -> VoicePrompt:
    case = golden.cases("voice_prompt")[0]
    return VoicePrompt(golden.codes(case["codes"]), case["ref_text"], case["rms"])


@st.composite
def requests(draw: st.DrawFn) -> SynthesisRequest:
    """A request with parameters of its own: every one that the step reads takes part."""
    return SynthesisRequest(
        text=draw(st.sampled_from(TEXTS)),
        language=draw(st.sampled_from([None, "en", "zh"])),
        voice=draw(st.sampled_from([None, None, voice()])),
        duration=draw(st.sampled_from([None, 0.2, 1.0])),
        seed=draw(st.integers(0, 2**64 - 1)),
        params=SamplingParams(
            num_step=draw(st.integers(1, 5)),
            guidance_scale=draw(st.sampled_from([0.0, 2.0, 3.5])),
            t_shift=draw(st.sampled_from([0.1, 0.7])),
            layer_penalty_factor=draw(st.sampled_from([0.0, 5.0])),
            position_temperature=draw(st.sampled_from([0.0, 5.0])),
            class_temperature=draw(st.sampled_from([0.0, 0.0, 0.8])),
            audio_chunk_threshold=draw(st.sampled_from([1.0, 30.0])),
            audio_chunk_duration=1.0,
        ),
    )


def flat_codes(result: object) -> np.ndarray:
    codes = result.codes  # type: ignore[attr-defined]
    assert codes is not None, result.error  # type: ignore[attr-defined]
    return np.concatenate(codes, axis=1) if isinstance(codes, list) else codes


# Distortions that a batch may hold: a request that is refused, or one that is aborted after some steps.
MISHAPS = ("none", "refused", "aborted")


@settings(max_examples=80, deadline=None)
@given(wanted=requests(), mates=st.lists(st.tuples(requests(), st.sampled_from(MISHAPS)), max_size=4), data=st.data())
def test_codes_do_not_depend_on_the_batch(
    engines: dict[str, Engine],
    wanted: SynthesisRequest,
    mates: list[tuple[SynthesisRequest, str]],
    data: st.DataObject,
) -> None:
    """Alone, or at any position beside mates that fail, join late and leave early, in both modes."""
    alone = flat_codes(engines["request"].generate([wanted])[0])
    place = data.draw(st.integers(0, len(mates)), label="position")
    steps_before = data.draw(st.lists(st.integers(0, 3), min_size=len(mates), max_size=len(mates)), label="steps")
    for engine in engines.values():
        results: dict[str, object] = {}
        for index, (mate, mishap) in enumerate([*mates[:place], (wanted, "wanted"), *mates[place:]]):
            if mishap == "refused":
                with pytest.raises(InvalidRequest):
                    engine.add_request(str(index), replace(mate, text="..."))
                continue
            engine.add_request("wanted" if mishap == "wanted" else str(index), mate)
            for _ in range(steps_before[index - 1] if index else 0):
                results.update(engine.step())
            if mishap == "aborted":
                engine.abort(str(index))
        while engine.num_unfinished:
            results.update(engine.step())
        np.testing.assert_array_equal(flat_codes(results["wanted"]), alone)


def test_float32_codes_agree_but_for_near_ties() -> None:
    """In float32 a product's rounding depends on its shape: nearly all requests still give the same codes."""
    params = SamplingParams(num_step=8)
    wanted = [
        SynthesisRequest(f"Sentence {number} of many, {text}", seed=number, params=params)
        for number, text in enumerate(TEXTS * 10)
    ]
    single = load("float32", "request")
    alone = [flat_codes(single.generate([request])[0]) for request in wanted]
    for mode in ("request", "step"):
        batched = load("float32", mode, max_batch_requests=7).generate(wanted)
        equal = sum(np.array_equal(a, flat_codes(b)) for a, b in zip(alone, batched, strict=True))
        assert equal >= 0.98 * len(wanted)


def test_one_bad_request_in_eight() -> None:
    """Seven waveforms and one error, in the caller's order."""
    wanted = [SynthesisRequest(text, seed=1, params=SamplingParams(num_step=2)) for text in TEXTS[:4] * 2]
    wanted[3] = replace(wanted[3], language="Klingonese")
    results = load("float32", "request").generate(wanted)
    errors = [index for index, result in enumerate(results) if result.error is not None]
    assert errors == [3]
    assert isinstance(results[3].error, InvalidRequest)
    assert results[3].error.field == "language"
    assert all(result.waveform is not None for index, result in enumerate(results) if index != 3)


@pytest.mark.parametrize("bad", ["text", None, {"text": "Hi"}], ids=str)
def test_what_is_no_request_fails_alone(bad: Any) -> None:
    good = SynthesisRequest("Hi", seed=1, params=SamplingParams(num_step=1))
    failed, served = load("float32", "request").generate([bad, good])
    assert isinstance(failed.error, InvalidRequest)
    assert failed.error.field == "request"
    assert served.waveform is not None


def bad_voices() -> list[object]:
    """What could stand where a voice belongs."""
    good = voice()
    return ["x", 7, good.codes, {"codes": good.codes}]


@pytest.mark.parametrize("bad", bad_voices(), ids=lambda bad: type(bad).__name__)
def test_what_is_no_voice_fails_its_request_alone(bad: object) -> None:
    params = SamplingParams(num_step=1)
    wanted = [SynthesisRequest("Hello.", voice=bad, params=params), SynthesisRequest("Hello.", params=params)]  # type: ignore[arg-type]
    refused, served = load("float32", "request").generate(wanted)
    assert isinstance(refused.error, InvalidRequest)
    assert refused.error.field == "voice"
    assert served.error is None


@pytest.mark.parametrize(
    ("codes", "ref_text", "field"),
    [
        (np.full((8, 3), 1024), "A line.", "voice"),
        (np.full((8, 3), -1), "A line.", "voice"),
        (np.zeros((7, 3), np.int64), "A line.", "voice"),
        (np.zeros((8, 0), np.int64), "A line.", "voice"),
        (np.zeros((8, 3_001), np.int64), "A line.", "voice"),
        (np.zeros((8, 3)), "A line.", "voice"),
        ([[0] * 3] * 8, "A line.", "voice"),
        (np.zeros((8, 3), np.int64), "  ", "ref_text"),
        (np.zeros((8, 3), np.int64), None, "ref_text"),
    ],
)
def test_a_voice_holds_codes_that_the_tables_have(codes: object, ref_text: object, field: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        VoicePrompt(codes, ref_text)  # type: ignore[arg-type]
    assert caught.value.field == field


@pytest.mark.parametrize("device", ["cuda", "cuda:7", "gpu", "cuda:x", "mps", ""])
def test_a_device_that_is_not_there_is_named(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ValueError, match=r"^device: ") as caught:
        Engine.from_checkpoint(golden.CHECKPOINT, EngineConfig(device=device))
    assert "\n" not in str(caught.value)


def test_a_dtype_that_is_not_known_is_named() -> None:
    with pytest.raises(ValueError, match=r"^dtype: "):
        Engine.from_checkpoint(golden.CHECKPOINT, EngineConfig(device="cpu", dtype="int4"))


def test_not_finite_scores_fail_one_request() -> None:
    """A voice whose embedding turns everything behind it to NaN spoils its own request, not its neighbours'."""
    engine = load("float32", "request")
    engine._executor.backbone.audio_table[7] = np.nan  # codebook 0, code 7
    spoilt = VoicePrompt(np.full((8, 5), 7), "A short line.")
    clean = VoicePrompt(np.full((8, 5), 9), "A short line.")
    params = SamplingParams(num_step=2)
    results = engine.generate([SynthesisRequest("Hello you.", voice=v, params=params, seed=1) for v in (clean, spoilt)])
    assert isinstance(results[1].error, GenerationFailed)
    # The clean one may draw code 7 itself and spoil its second step; with this seed it does not.
    assert results[0].error is None


def test_not_finite_scores_in_the_first_of_many_chunks_fail_one_request() -> None:
    """That chunk would have become the voice of the others."""
    engine = load("float32", "step")
    spoilt, clean = "Zebra zones. " * 5, "Good morning to you. " * 3
    shared = engine._tokenizer.prompt(clean, None, None, denoise=True)
    only_spoilt = set(engine._tokenizer.encode(spoilt)) - set(shared)
    engine._executor.backbone.text_table[sorted(only_spoilt)] = np.nan
    params = SamplingParams(num_step=2, audio_chunk_threshold=1.0, audio_chunk_duration=1.0)
    failed, served = engine.generate([SynthesisRequest(text, params=params, seed=1) for text in (spoilt, clean)])
    assert isinstance(failed.error, GenerationFailed)
    assert served.error is None
    assert isinstance(served.codes, list)
    assert engine.num_unfinished == 0


def test_the_seed_decides_and_is_named() -> None:
    engine = load("float32", "request")
    request = SynthesisRequest("Good morning to you.", params=SamplingParams(num_step=4))
    first, second = engine.generate([request, request])
    assert first.seed != second.seed
    assert not np.array_equal(flat_codes(first), flat_codes(second))
    again = engine.generate([replace(request, seed=first.seed)])[0]
    np.testing.assert_array_equal(flat_codes(again), flat_codes(first))


def test_abort_ends_at_the_next_step_and_leaves_the_rest() -> None:
    engine = load("float32", "step")
    for name in ("stays", "goes"):
        engine.add_request(name, SynthesisRequest("Good morning to you.", seed=3))
    assert engine.step() == []
    engine.abort("goes")
    ((ended, result),) = engine.step()
    assert ended == "goes"
    assert isinstance(result.error, RequestAborted)
    remaining = [item for _ in range(40) for item in engine.step()]
    assert [name for name, _ in remaining] == ["stays"]


def test_step_mode_lets_requests_join_and_leave_between_steps() -> None:
    engine = load("float32", "step")
    engine.add_request("long", SynthesisRequest("Hello there.", seed=1, params=SamplingParams(num_step=10)))
    engine.step()
    engine.add_request("short", SynthesisRequest("Hello there.", seed=1, params=SamplingParams(num_step=3)))
    left = []
    for _ in range(9):
        engine.step()
        left.append(engine.take_generated())
    assert left == [[], [], ["short"], [], [], [], [], [], ["long"]]


def test_request_mode_finishes_its_window_first() -> None:
    engine = load("float32", "request")
    engine.add_request("first", SynthesisRequest("Hello there.", seed=1, params=SamplingParams(num_step=4)))
    engine.step()
    engine.add_request("second", SynthesisRequest("Hello there.", seed=1, params=SamplingParams(num_step=1)))
    left = []
    for _ in range(4):
        engine.step()
        left.append(engine.take_generated())
    assert left == [[], [], ["first"], ["second"]]


@pytest.mark.parametrize("limit", [{"max_batch_requests": 2}, {"max_batch_tokens": 300}])
def test_limits_bound_every_batch(limit: dict[str, int]) -> None:
    engine = load("float32", "step", **limit)
    for index in range(6):
        engine.add_request(str(index), SynthesisRequest("Good morning to you.", seed=index))
    sizes = set()
    ended: list[str] = []
    while engine.num_unfinished:
        ended += [name for name, _ in engine.step()]
        running = engine._scheduler.running
        sizes.add(len(running))
        assert len(running) <= limit.get("max_batch_requests", 99)
        assert len(running) <= 1 or sum(run.num_tokens for run in running) <= limit.get("max_batch_tokens", 10**9)
    assert sorted(ended) == [str(index) for index in range(6)]
    assert max(sizes) == 2


@pytest.mark.parametrize("mode", ["request", "step"])
def test_no_batch_waits_for_a_result_while_chunks_wait_for_it(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of many chunks that one batch does not hold: nothing of it can be finished before all of them are."""
    monkeypatch.setattr("omnivoice.engine.TAKE_SECONDS", 20.0)
    engine = load("float32", mode, max_batch_requests=1)
    params = SamplingParams(num_step=1, audio_chunk_threshold=1.0, audio_chunk_duration=1.0)
    start = time.perf_counter()
    [result] = engine.generate([SynthesisRequest("One two three. " * 6, duration=6.0, params=params)])
    assert isinstance(result.codes, list)
    assert len(result.codes) > 2
    assert time.perf_counter() - start < 20.0


def test_out_of_memory_splits_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device refuses more than 300 rows: everything is still served, with the codes it has alone."""
    import torch

    engine = load("float64", "request")
    params = SamplingParams(num_step=3)
    wanted = [SynthesisRequest("Good morning to you.", seed=index, params=params) for index in range(6)]
    alone = [flat_codes(engine.generate([request])[0]) for request in wanted]
    forward = type(engine._executor.backbone).forward

    def small_device(self, hidden, packing):  # type: ignore[no-untyped-def]
        if len(hidden) > 300:
            raise torch.cuda.OutOfMemoryError("no memory")
        return forward(self, hidden, packing)

    monkeypatch.setattr(type(engine._executor.backbone), "forward", small_device)
    results = engine.generate(wanted)
    for result, expected in zip(results, alone, strict=True):
        np.testing.assert_array_equal(flat_codes(result), expected)
    long = SynthesisRequest("Good morning to you.", duration=20.0, params=params)
    assert isinstance(engine.generate([long])[0].error, GenerationFailed)


def test_an_interrupted_generate_leaves_an_idle_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a notebook: the requests of that call are forgotten, the next call is served."""
    engine = load("float32", "request")
    params = SamplingParams(num_step=3)
    request = SynthesisRequest("Good morning to you.", seed=1, params=params)
    expected = flat_codes(engine.generate([request])[0])
    with monkeypatch.context() as patch:

        def interrupted() -> None:
            raise KeyboardInterrupt

        patch.setattr(engine._executor, "step", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.generate([request, request])
    assert engine.num_unfinished == 0
    np.testing.assert_array_equal(flat_codes(engine.generate([request])[0]), expected)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("mode", "x"),
        ("max_batch_requests", 0),
        ("max_batch_requests", True),
        ("max_batch_tokens", -1),
        ("max_batch_tokens", 2.5),
        ("memory_gib", 0),
        ("memory_gib", "abc"),
    ],
)
def test_a_config_with_which_nothing_could_run_is_refused(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=f"^{field}: must be "):
        EngineConfig(**{field: value})  # type: ignore[arg-type]
