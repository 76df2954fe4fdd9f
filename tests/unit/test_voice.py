"""Reference voices: golden prompts, what is refused, and the cache that encodes each voice once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from omnivoice.errors import InvalidRequest
from omnivoice.model.codec import Codec
from omnivoice.request import VoicePrompt
from omnivoice.voice import VoiceCache, encode_voice

GOLDEN = Path(__file__).parents[1] / "golden"
TENSORS = load_file(GOLDEN / "tensors.safetensors")
CASES = [json.loads(line) for line in (GOLDEN / "cases.jsonl").read_text(encoding="utf-8").splitlines()]
PROMPTS = {case["name"]: case for case in CASES if case["kind"] == "voice_prompt"}


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec.from_folder(GOLDEN / "checkpoint")


@pytest.fixture(scope="module")
def clip() -> np.ndarray:
    """Three seconds at 24 kHz, RMS 0.065."""
    return TENSORS["prompt.plain.wav"].astype(np.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("name", ["plain", "gaps", "stereo16k", "raw44k"])
def test_prompts_equal_golden(name: str, dtype: torch.dtype) -> None:
    case = PROMPTS[name]
    waveform = TENSORS[case["waveform"]].astype(np.float32)
    codec = Codec.from_folder(GOLDEN / "checkpoint", dtype=dtype)
    voice = encode_voice(codec, waveform, case["sample_rate"], case["text"], case["preprocess"])
    np.testing.assert_array_equal(voice.codes, TENSORS[case["codes"]])
    assert voice.ref_text == case["ref_text"]
    assert voice.rms == pytest.approx(case["rms"], abs=1e-4)


def test_golden_silence_is_refused(codec: Codec) -> None:
    case = PROMPTS["silence"]
    assert case["error"]
    with pytest.raises(InvalidRequest, match="silent") as refused:
        encode_voice(codec, TENSORS[case["waveform"]].astype(np.float32), case["sample_rate"], case["text"])
    assert refused.value.field == "ref_audio"


def test_no_golden_prompt_is_left_out() -> None:
    assert set(PROMPTS) == {"plain", "gaps", "silence", "stereo16k", "raw44k"}


@pytest.mark.parametrize(
    "layout",
    [lambda clip: clip[None], lambda clip: np.stack([clip, clip]), lambda clip: np.stack([clip * 2, clip * 0])],
    ids=["one channel", "two equal channels", "one channel silent"],
)
def test_channels_are_averaged(codec: Codec, clip: np.ndarray, layout: Callable[[np.ndarray], np.ndarray]) -> None:
    wanted = encode_voice(codec, clip, 24_000, "A line.")
    found = encode_voice(codec, layout(clip), 24_000, "A line.")
    np.testing.assert_array_equal(found.codes, wanted.codes)
    assert found.rms == wanted.rms


def test_six_channels_at_8_khz(codec: Codec, clip: np.ndarray) -> None:
    voice = encode_voice(codec, np.stack([clip[::3]] * 6), 8_000, "A line.", preprocess=False)
    assert voice.codes.shape == (8, 75)


def test_quiet_clips_are_lifted_and_their_level_is_kept(codec: Codec, clip: np.ndarray) -> None:
    wanted = encode_voice(codec, clip, 24_000, "A line.")
    found = encode_voice(codec, clip * np.float32(0.25), 24_000, "A line.")
    np.testing.assert_array_equal(found.codes, wanted.codes)
    assert found.rms == pytest.approx(wanted.rms / 4, rel=1e-6)


def test_loud_clips_are_not_lowered(codec: Codec, clip: np.ndarray) -> None:
    loud = clip * np.float32(4)
    voice = encode_voice(codec, loud, 24_000, "A line.", preprocess=False)
    np.testing.assert_array_equal(voice.codes, codec.encode(loud))
    assert voice.rms == pytest.approx(float(np.sqrt(np.mean(np.square(loud, dtype=np.float64)))), rel=1e-6)


def test_peaks_over_one_are_scaled_not_clipped(codec: Codec, clip: np.ndarray) -> None:
    at_full_scale = clip / np.abs(clip).max()
    wanted = encode_voice(codec, at_full_scale, 24_000, "A line.").codes
    found = encode_voice(codec, clip * np.float32(16), 24_000, "A line.").codes
    clipped = encode_voice(codec, np.clip(clip * np.float32(16), -1, 1), 24_000, "A line.").codes
    assert np.mean(found == wanted) > 0.95
    assert np.mean(clipped == wanted) < 0.5


def test_a_part_of_a_frame_at_the_end_is_dropped(codec: Codec, clip: np.ndarray) -> None:
    voice = encode_voice(codec, clip[: 10 * 960 + 959], 24_000, "A line.", preprocess=False)
    assert voice.codes.shape == (8, 10)


def test_text_is_left_alone_without_preprocessing(codec: Codec, clip: np.ndarray) -> None:
    assert encode_voice(codec, clip, 24_000, "A line", preprocess=False).ref_text == "A line"
    assert encode_voice(codec, clip, 24_000, "A line").ref_text == "A line."


@pytest.mark.parametrize("text", ["", "   ", "\n", None])
def test_a_missing_transcript_is_refused(codec: Codec, clip: np.ndarray, text: str) -> None:
    with pytest.raises(InvalidRequest, match="transcript") as refused:
        encode_voice(codec, clip, 24_000, text)
    assert refused.value.field == "ref_text"


@pytest.mark.parametrize("preprocess", [True, False])
@pytest.mark.parametrize(
    ("waveform", "message"),
    [
        (np.zeros(0, np.float32), "no samples"),
        (np.zeros(24_000, np.float32), "silent"),
        (np.full(24_000, 1e-7, np.float32), "silent"),
        (np.full(500, 0.1, np.float32), "at least 40 ms"),
        (np.full(24_000, np.nan, np.float32), "finite"),
        (np.full(24_000, np.inf, np.float32), "finite"),
        (np.full((1, 1, 24_000), 0.1, np.float32), "shape"),
        (np.full(24_000, 3_000, np.int16), "floats within ±1, not int16"),
        ([0.1] * 24_000, "NumPy array of floats within ±1, not list"),
        (np.full(31 * 24_000, 0.1, np.float32), "at most 30 s, not 31.0"),
    ],
)
def test_audio_without_a_voice_is_refused(codec: Codec, waveform: np.ndarray, message: str, preprocess: bool) -> None:
    with pytest.raises(InvalidRequest, match=message) as refused:
        encode_voice(codec, waveform, 24_000, "A line.", preprocess)
    assert refused.value.field == "ref_audio"
    assert "\n" not in str(refused.value)


def voice_named(text: str) -> VoicePrompt:
    return VoicePrompt(codes=np.zeros((8, 1), np.int64), ref_text=text)


class Encodes:
    """An `encode` for the cache that counts its calls and may be held back."""

    def __init__(self, text: str = "a", gate: Event | None = None, error: Exception | None = None) -> None:
        self.text, self.gate, self.error = text, gate, error
        self.started = Event()
        self.num_calls = 0

    def __call__(self) -> VoicePrompt:
        self.num_calls += 1
        self.started.set()
        if self.gate is not None:
            assert self.gate.wait(30)
        if self.error is not None:
            raise self.error
        return voice_named(self.text)


def test_a_voice_is_encoded_once() -> None:
    cache, encode = VoiceCache(), Encodes()
    assert cache.get("key", encode) is cache.get("key", encode)
    assert encode.num_calls == 1


@pytest.mark.parametrize("rate", [0, -24_000, "24000", 24_000.5, None, True], ids=repr)
def test_a_rate_that_is_none_is_refused(codec: Codec, clip: np.ndarray, rate: Any) -> None:
    with pytest.raises(InvalidRequest, match="whole number of hertz") as refused:
        encode_voice(codec, clip, rate, "Good morning.")
    assert refused.value.field == "sample_rate"


def test_threads_that_ask_together_share_one_encoding() -> None:
    cache, encode = VoiceCache(), Encodes(gate=Event())
    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(cache.get, "key", encode) for _ in range(6)]
        assert encode.started.wait(30)
        # Another voice is neither blocked by the one in the works nor mixed up with it.
        assert cache.get("other", Encodes("b")).ref_text == "b"
        encode.gate.set()
        voices = [future.result(30) for future in asked]
    assert encode.num_calls == 1
    assert all(voice is voices[0] for voice in voices)


def test_a_failure_reaches_all_who_wait_and_is_not_kept() -> None:
    cache, encode = VoiceCache(), Encodes(gate=Event(), error=InvalidRequest("ref_audio", "is silent"))
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(cache.get, "key", encode)
        assert encode.started.wait(30)
        second = pool.submit(cache.get, "key", encode)
        encode.gate.set()
        for future in (first, second):
            with pytest.raises(InvalidRequest, match="silent"):
                future.result(30)
    assert len(cache) == 0
    assert cache.get("key", Encodes("fine")).ref_text == "fine"


def test_the_voice_used_longest_ago_is_dropped() -> None:
    cache = VoiceCache(max_voices=2)
    encodes = {name: Encodes(name) for name in "abc"}
    for name in "abac":
        cache.get(name, encodes[name])
    assert len(cache) == 2
    for name in "ab":
        cache.get(name, encodes[name])
    assert {name: encode.num_calls for name, encode in encodes.items()} == {"a": 1, "b": 2, "c": 1}


def test_a_cache_needs_room() -> None:
    with pytest.raises(ValueError, match="max_voices"):
        VoiceCache(max_voices=0)


def test_the_key_depends_on_all_that_a_voice_depends_on(clip: np.ndarray) -> None:
    base: dict[str, Any] = {"waveform": clip, "sample_rate": 24_000, "ref_text": "A line.", "preprocess": True}
    one_sample_off = clip.copy()
    one_sample_off[-1] += 1e-3
    changes: list[dict[str, Any]] = [
        {"waveform": one_sample_off},
        {"waveform": clip[:-1]},
        {"waveform": clip.reshape(2, -1)},
        {"sample_rate": 16_000},
        {"ref_text": "A line!"},
        {"preprocess": False},
    ]
    keys = {VoiceCache.key(**base), *(VoiceCache.key(**(base | change)) for change in changes)}
    assert len(keys) == 1 + len(changes)
    assert VoiceCache.key(**(base | {"waveform": np.repeat(clip, 2)[::2]})) == VoiceCache.key(**base)


def test_importing_voices_does_not_load_torch() -> None:
    script = "import sys, omnivoice.voice; assert 'torch' not in sys.modules"
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=GOLDEN.parents[1],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
