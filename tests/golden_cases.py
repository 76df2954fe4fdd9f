"""The reference package's numbers: what it computed with the small checkpoint beside them (see golden/README.md)."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file

GOLDEN = Path(__file__).parent / "golden"
CHECKPOINT = GOLDEN / "checkpoint"
FADED = 4_800
"""Samples of silence and fade at either end of a finished waveform."""


@cache
def tensors() -> dict[str, NDArray[Any]]:
    return load_file(GOLDEN / "tensors.safetensors")


@cache
def all_cases() -> list[dict[str, Any]]:
    return [json.loads(line) for line in (GOLDEN / "cases.jsonl").read_text(encoding="utf-8").splitlines()]


def cases(*kinds: str) -> list[dict[str, Any]]:
    return [case for case in all_cases() if case["kind"] in kinds]


def codes(name: str) -> NDArray[np.int64]:
    """Codes or ids, (8, T), as int64."""
    return np.squeeze(tensors()[name]).astype(np.int64)


def relative_error(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """‖found − expected‖ / ‖expected‖ in float64."""
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def mean_error(found: NDArray[Any], expected: NDArray[Any]) -> float:
    """mean |found − expected| / mean |expected| in float64."""
    found, expected = found.astype(np.float64), expected.astype(np.float64)
    return float(np.abs(found - expected).mean() / np.abs(expected).mean())


def tolerance(expected: NDArray[Any]) -> float:
    """What a comparison allows: golden holds long tensors as float16, which costs three digits."""
    return 1e-3 if expected.dtype == np.float16 else 1e-4


def finished_tolerance(case: dict[str, Any]) -> float:
    """What a comparison of a finished waveform's `mean_error` allows.

    On its way a waveform is cut to 16 bits. A difference far below one of their steps moves a few samples by a whole
    step: on average by as much as before, while the root of the mean square grows. So the mean is compared. Without
    a voice the level is set by the peak, which may have moved by a step too, and that changes every sample.
    """
    expected = tensors()[case["audio"]]
    if case["prompt"] is not None:
        return tolerance(expected)
    magnitudes = np.abs(expected[FADED:-FADED])
    return tolerance(expected) + float(magnitudes[magnitudes > 0].min() / magnitudes.max())
