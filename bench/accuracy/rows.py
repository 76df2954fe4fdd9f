"""The rows of the table: which engine, how requests come to it, with how many steps, and which texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from typing import Any

from bench.accuracy.texts import KINDS, SHORT
from omnivoice import SamplingParams

BASELINE = "float32 eager"
ENGINES: dict[str, dict[str, Any]] = {
    BASELINE: {"dtype": "float32", "graphs": False},
    "bfloat16 graph": {"dtype": "bfloat16"},
    "float32 graph": {"dtype": "float32"},
    "bfloat16 eager": {"dtype": "bfloat16", "graphs": False},
    "fp8 graph": {"dtype": "bfloat16", "fp8": True},
    "deterministic": {"dtype": "bfloat16", "deterministic": True},
    "float16 graph": {"dtype": "float16"},
    "bfloat16 graph, step mode": {"dtype": "bfloat16", "mode": "step"},
    "float32 eager, step mode": {"dtype": "float32", "graphs": False, "mode": "step"},
    "float64 eager": {"dtype": "float64", "graphs": False},
}
"""Fields of `EngineConfig`."""
REFERENCE = "reference package, float32"
"""Not one of the engines: another package, in a process of its own."""

BATCHED, CLIENTS, RATE = "batches of", "in flight", "a second"
BATCH = 32


@dataclass(frozen=True, slots=True)
class Row:
    """`size` requests together (`BATCHED`), or at any time (`CLIENTS`), or arriving in a second (`RATE`)."""

    engine: str
    kind: str = SHORT
    how: str = BATCHED
    size: float = BATCH
    num_step: int | None = None

    @property
    def name(self) -> str:
        coming = {BATCHED: f"{BATCHED} {self.size:g}" if self.size > 1 else "alone"}
        parts = [self.engine, coming.get(self.how, f"{self.size:g} {self.how}")]
        parts += [f"{self.num_step} steps"] if self.num_step else []
        return ", ".join([*parts, self.kind])

    @property
    def slug(self) -> str:
        return re.sub(r"[^a-z0-9.]+", "-", self.name.lower()).strip("-")

    @property
    def needs_cuda(self) -> bool:
        return self.engine in ENGINES and ENGINES[self.engine].get("graphs", True)

    def params(self, num_step: int) -> SamplingParams:
        """`num_step` is that of the rows that have none of their own."""
        return SamplingParams(num_step=self.num_step or num_step)


def rows_of(device: str, rate: float, *, has_reference: bool) -> list[Row]:
    """All rows, by importance; those that need CUDA too. What is served is bfloat16 with graphs, or what a CPU has."""
    served = "bfloat16 graph" if device == "cuda" else BASELINE
    rows = [Row(BASELINE, kind) for kind in KINDS]
    rows += [Row(served, kind) for kind in KINDS]
    rows += [Row(served, how=CLIENTS, size=4), Row(served, how=CLIENTS, size=8)]
    rows += [Row(served, num_step=16), Row(served, num_step=12), Row(served, size=1)]
    rows += [Row(name) for name, options in ENGINES.items() if "mode" not in options and name != "float64 eager"]
    rows += [Row("deterministic", size=1)]
    rows += [Row(REFERENCE)] if has_reference else []
    rows += [Row(f"{served}, step mode", how=RATE, size=rate)]
    rows += [Row("float64 eager")] if device == "cpu" else []
    return list(dict.fromkeys(rows))


def chosen(rows: Sequence[Row], patterns: str) -> list[Row]:
    """The rows whose slug fits one of the comma-separated patterns; the baseline is always the first.

    Without patterns all but float64, which takes long. Raises `ValueError` for a pattern that no row fits.
    """
    wanted = [pattern for pattern in patterns.split(",") if pattern]
    if not wanted:
        return [row for row in rows if not row.engine.startswith("float64")]
    slugs = [row.slug for row in rows]
    if unknown := [pattern for pattern in wanted if not any(fnmatch(slug, pattern) for slug in slugs)]:
        raise ValueError(f"{', '.join(unknown)}: no such row; there are {', '.join(slugs)}")
    return [row for row in rows if row == Row(BASELINE) or any(fnmatch(row.slug, pattern) for pattern in wanted)]


def in_turns(rows: Sequence[Row]) -> list[list[Row]]:
    """The rows, together where they share an engine: starting one takes longer than most rows do."""
    engines = dict.fromkeys(row.engine for row in rows)
    return [[row for row in rows if row.engine == engine] for engine in engines]
