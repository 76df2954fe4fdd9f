"""The codec against what the reference package computed, and against its own promises."""

from __future__ import annotations

import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from omnivoice.model.codec import Codec

TESTS = Path(__file__).parents[1]
GOLDEN = TESTS / "golden"
DEMO = TESTS.parent / "checkpoints" / "demo"
CASES = [json.loads(line) for line in (GOLDEN / "cases.jsonl").read_text(encoding="utf-8").splitlines()]
TENSORS = load_file(GOLDEN / "tensors.safetensors")
DECODED = [(case["tokens"], case["decoded"]) for case in CASES if "decoded" in case]
DECODED += [(case["codes"], case["waveform"]) for case in CASES if case["kind"] == "codec_decode"]
ENCODED = [(case["waveform"], case["codes"]) for case in CASES if case["kind"] == "codec_encode"]


@pytest.fixture(scope="module", params=[torch.float32, torch.float64], ids=["float32", "float64"])
def codec(request: pytest.FixtureRequest) -> Codec:
    return Codec.from_folder(GOLDEN / "checkpoint", dtype=request.param)


@pytest.fixture(scope="module")
def demo_codec() -> Codec:
    return Codec.from_folder(DEMO)


def random_codes(frames: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 1024, (8, frames))


def relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


def test_golden_has_the_cases() -> None:
    assert len(DECODED) >= 4
    assert len(ENCODED) >= 1


@pytest.mark.parametrize(("codes", "waveform"), DECODED)
def test_decode_equals_golden(codec: Codec, codes: str, waveform: str) -> None:
    wanted = TENSORS[waveform]
    found = codec.decode(TENSORS[codes].reshape(8, -1).astype(np.int64))
    assert found.dtype == np.float32
    assert found.shape == (wanted.size,)
    limit = 1e-3 if wanted.dtype == np.float16 else 1e-4
    assert relative_error(found, wanted.ravel().astype(np.float32)) <= limit


@pytest.mark.parametrize(("waveform", "codes"), ENCODED)
def test_encode_equals_golden(codec: Codec, waveform: str, codes: str) -> None:
    found = codec.encode(TENSORS[waveform].ravel())
    assert found.dtype == np.int64
    np.testing.assert_array_equal(found, TENSORS[codes].reshape(8, -1))


@pytest.mark.parametrize("frames", [1, 2, 25])
def test_round_trip_keeps_the_sample_count(demo_codec: Codec, frames: int) -> None:
    time = np.arange(frames * 960) / 24_000
    waveform = (0.2 * np.sin(2 * np.pi * 220 * time)).astype(np.float32)
    codes = demo_codec.encode(waveform)
    assert codes.shape == (8, frames)
    assert 0 <= codes.min() <= codes.max() <= 1023
    decoded = demo_codec.decode(codes)
    assert decoded.shape == waveform.shape
    assert np.isfinite(decoded).all()


def test_demo_speaks_something_finite(demo_codec: Codec) -> None:
    waveform = demo_codec.decode(random_codes(40))
    assert np.isfinite(waveform).all()
    assert np.abs(waveform).max() > 1e-3


def test_rows_of_a_batch_do_not_mix(demo_codec: Codec) -> None:
    first, second = random_codes(12, seed=1), random_codes(12, seed=2)
    with torch.inference_mode():
        rows = demo_codec.network.decode(torch.from_numpy(np.stack([first, second]))).numpy()
    assert relative_error(rows[0], demo_codec.decode(first)) < 1e-5
    assert relative_error(rows[1], demo_codec.decode(second)) < 1e-5


def test_several_threads_decode_as_one_does(codec: Codec) -> None:
    inputs = [random_codes(10 + index, seed=index) for index in range(6)]
    alone = [codec.decode(codes) for codes in inputs]
    with ThreadPoolExecutor(3) as pool:
        together = list(pool.map(codec.decode, inputs))
    for found, wanted in zip(together, alone, strict=True):
        np.testing.assert_allclose(found, wanted, rtol=0, atol=1e-6)


def test_inputs_are_left_as_they_were(demo_codec: Codec) -> None:
    codes, waveform = random_codes(5), np.full(4 * 960, 0.1, np.float32)
    codes_before, waveform_before = codes.copy(), waveform.copy()
    codes.setflags(write=False)
    waveform.setflags(write=False)
    demo_codec.decode(codes)
    demo_codec.encode(waveform)
    np.testing.assert_array_equal(codes, codes_before)
    np.testing.assert_array_equal(waveform, waveform_before)


@pytest.mark.parametrize(
    ("codes", "message"),
    [
        (np.full((8, 3), 1024), "from 0 to 1023, not 1024"),
        (np.full((8, 3), -1), "from 0 to 1023, not -1"),
        (np.zeros((7, 3), np.int64), "shape"),
        (np.zeros((8, 0), np.int64), "shape"),
        (np.zeros((1, 8, 3), np.int64), "shape"),
        (np.zeros((8, 3)), "whole numbers"),
    ],
)
def test_decode_refuses_what_are_no_codes(demo_codec: Codec, codes: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        demo_codec.decode(codes)


@pytest.mark.parametrize(
    ("waveform", "message"),
    [
        (np.zeros(0, np.float32), "shape"),
        (np.zeros(961, np.float32), "shape"),
        (np.zeros((1, 960), np.float32), "shape"),
        (np.zeros(960, np.int16), "floats"),
        (np.full(960, np.nan, np.float32), "finite"),
    ],
)
def test_encode_refuses_what_is_no_waveform(demo_codec: Codec, waveform: np.ndarray, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        demo_codec.encode(waveform)


@pytest.mark.parametrize(
    ("device", "dtype"), [("cpu", torch.float16), ("cpu", torch.bfloat16), ("cuda", torch.float64)]
)
def test_dtypes_that_overflow_or_are_slow_are_refused(device: str, dtype: torch.dtype) -> None:
    with pytest.raises(ValueError, match="float32"):
        Codec.from_folder(DEMO, device, dtype)


def test_imports_are_light_and_never_bring_in_torchaudio() -> None:
    script = (
        "import sys\n"
        "from omnivoice.model.codec import Codec\n"
        "assert 'transformers' not in sys.modules, 'transformers is imported before a codec is loaded'\n"
        f"Codec.from_folder({str(DEMO)!r})\n"
        "heavy = [name for name in sys.modules if 'torchaudio' in name or 'modeling_higgs' in name]\n"
        "assert not heavy, heavy\n"
    )
    ended = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr == ""
