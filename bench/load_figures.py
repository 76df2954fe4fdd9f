"""From what a load test measured to what is read: fits, verdicts, tables."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from bench.plot import markdown, percentile

KILOBYTE = 1_000
LEAST_LEAK_BYTES = 8.0
"""What the smallest leak takes of each job: one pointer, in a list that is never emptied."""
NUM_BLOCKS = 5
T_95 = 2.353
"""One-sided 95 % quantile of Student's t with `NUM_BLOCKS` - 2 degrees of freedom."""


class Line(NamedTuple):
    """A least-squares line's slope and its standard error, in the units of y by those of x."""

    slope: float
    error: float


def fit(x: Sequence[float], y: Sequence[float]) -> Line:
    """The line through the points. Raises `ValueError` for fewer than three."""
    if len(x) < 3:
        raise ValueError(f"{len(x)} points are too few for a line and its error")
    slope, intercept = statistics.linear_regression(x, y)
    residuals = sum((b - (slope * a + intercept)) ** 2 for a, b in zip(x, y, strict=True))
    spread = sum((a - statistics.fmean(x)) ** 2 for a in x)
    return Line(slope, math.sqrt(residuals / (len(x) - 2) / spread))


class Growth(NamedTuple):
    """Of resident memory over the second half of a run: bytes a job, their standard error, bytes in all."""

    slope: float
    error: float
    total: float

    @property
    def upper_slope(self) -> float:
        """With 95 % confidence it grows by no more a job."""
        return self.slope + T_95 * self.error


def growth(jobs: Sequence[float], resident: Sequence[float]) -> Growth:
    """A line through the means of `NUM_BLOCKS` blocks of the second half: memory after one thousand jobs is nearly that
    after the thousand before, so the error of single points would be too small. Raises `ValueError` for too few."""
    size = len(jobs) // 2 // NUM_BLOCKS
    if size < 1:
        raise ValueError(f"{len(jobs)} points are too few for {NUM_BLOCKS} blocks in their second half")
    first = len(jobs) - size * NUM_BLOCKS
    starts = range(first, len(jobs), size)
    means = [[statistics.fmean(values[start : start + size]) for start in starts] for values in (jobs, resident)]
    return Growth(*fit(means[0], means[1]), resident[-1] - resident[first])


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
        for name, grown in memory["growth"].items():
            found.append((f"{name}, B a job at most", Growth(*grown).upper_slope, "<=", LEAST_LEAK_BYTES))
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
        names = list(memory["growth"])
        grown = [
            [name, f"{slope:.1f} ± {error:.1f}", f"{total / KILOBYTE:.0f}"]
            for name, (slope, error, total) in memory["growth"].items()
        ]
        parts.append(markdown(["over the second half", "B a job", "kB in all"], grown))
        rows = [[str(row["jobs"]), *(f"{row[name] / 1e6:.2f}" for name in names)] for row in memory["resident"]]
        parts.append(markdown(["jobs", *(f"{name}, MB" for name in names)], rows))
    return "\n\n".join(parts)
