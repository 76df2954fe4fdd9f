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


def tolerance(expected: NDArray[Any]) -> float:
    """What a comparison allows: golden holds long tensors as float16, which costs three digits."""
    return 1e-3 if expected.dtype == np.float16 else 1e-4
