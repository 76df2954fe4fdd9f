"""From what a load test measured to what is read: fits, verdicts, tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bench.plot import markdown, percentile

KILOBYTE = 1_000
NOISE_ERRORS = 2.0
"""A slope within so many standard errors of zero is none."""


class Line(NamedTuple):
    """A least-squares line's slope and its standard error, in the units of y by those of x."""

    slope: float
    error: float

    @property
    def is_flat(self) -> bool:
        return self.slope <= NOISE_ERRORS * self.error


def fit(x: Sequence[float], y: Sequence[float]) -> Line:
    """The line through the points. Raises `ValueError` for fewer than three."""
    if len(x) < 3:
        raise ValueError(f"{len(x)} points are too few for a line and its error")
    slope, intercept = statistics.linear_regression(x, y)
    residuals = sum((b - (slope * a + intercept)) ** 2 for a, b in zip(x, y, strict=True))
    spread = sum((a - statistics.fmean(x)) ** 2 for a in x)
    return Line(slope, math.sqrt(residuals / (len(x) - 2) / spread))


def latencies(seconds: Sequence[float]) -> dict[str, float]:
    """Percentiles, milliseconds."""
    found = {f"p{percent}_ms": round(percentile(seconds, percent) * 1e3, 2) for percent in (50, 95, 99)}
    return found | {"max_ms": round(max(seconds) * 1e3, 2)}


def verdicts(results: Mapping[str, Any]) -> list[tuple[str, float, str, float, bool]]:
    """What is aimed at: name, measured, relation, bound, whether it holds. Only what was measured is judged."""
    found: list[tuple[str, float, str, float]] = []
    if submit := results.get("submit"):
        found.append(("submitted, jobs/s", submit["jobs_per_s"], ">=", 300.0))
        found.append(("open loop of 150/s, p99 ms", submit["open_loop"]["p99_ms"], "<=", 100.0))
    for name, bound in (("worker", 300.0), ("worker_uploading", 100.0)):
        if worker := results.get(name):
            found.append((f"{name.replace('_', ', ')}: jobs/s", worker["jobs_per_s"], ">=", bound))
    if latency := results.get("latency"):
        found.append(("submit to window beyond max_wait_ms, p95 ms", latency["added"]["p95_ms"], "<=", 15.0))
    if memory := results.get("memory"):
        for name in memory["slopes"]:
            line = Line(*memory["slopes"][name])
            found.append((f"{name}, slope in B a job", line.slope, "<=", NOISE_ERRORS * line.error))
    if redis := results.get("redis"):
        found.append(("Redis, bytes a queued job", redis["bytes_a_job"], "<=", 2_500.0))
        found.append(("beyond the bound of published ids", redis["bytes_beyond_the_bound"], "<=", 1_200.0))
        found.append(("keys left after retention", redis["keys_left"], "<=", 0.0))
    return [(*row, row[1] >= row[3] if row[2] == ">=" else row[1] <= row[3]) for row in found]


def report(results: Mapping[str, Any]) -> str:
    judged = [
        [name, f"{value:.4g}", f"{relation} {bound:.4g}", "yes" if holds else "NO"]
        for name, value, relation, bound, holds in verdicts(results)
    ]
    parts = [markdown(["target", "measured", "bound", "holds"], judged)]
    if memory := results.get("memory"):
        names = list(memory["slopes"])
        rows = [[str(row["jobs"]), *(f"{row[name] / 1e6:.2f}" for name in names)] for row in memory["resident"]]
        parts.append(markdown(["jobs", *(f"{name}, MB" for name in names)], rows))
    return "\n\n".join(parts)
