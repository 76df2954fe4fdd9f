"""From samples to what is read: summaries, markdown tables, the plot.

python -m bench.plot bench/results/engine-2026-11-29.json    # draws it again, beside the file
"""

from __future__ import annotations

import json
import math
import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

ENGINE_PREFIX = "engine "
FLOOR_PREFIX = "floor "


class Summary(NamedTuple):
    median: float
    low: float
    high: float
    num_samples: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Summary:
        """Raises `ValueError` for no samples."""
        if not samples:
            raise ValueError("no samples")
        return cls(statistics.median(samples), min(samples), max(samples), len(samples))


def percentile(samples: Iterable[float], percent: float) -> float:
    """The smallest sample that at least `percent` per cent of the samples do not exceed (nearest rank)."""
    ordered = sorted(samples)
    if not ordered:
        raise ValueError("no samples")
    return ordered[max(0, math.ceil(percent / 100 * len(ordered)) - 1)]


@dataclass(slots=True)
class Block:
    """One workload, and what every contender took for it: milliseconds by name. `notes` say who failed, and how."""

    batch: int
    seconds: float
    frames: int
    has_voice: bool
    rows: int
    audio_seconds: float
    times_ms: dict[str, list[float]] = field(default_factory=dict)
    first_ms: dict[str, float] = field(default_factory=dict)
    notes: dict[str, str] = field(default_factory=dict)
    clocks_before: dict[str, str] = field(default_factory=dict)
    clocks_after: dict[str, str] = field(default_factory=dict)

    def summary(self, name: str) -> Summary | None:
        samples = self.times_ms.get(name)
        return Summary.of(samples) if samples else None

    def throughput(self, name: str) -> float | None:
        """Seconds of audio a second, at the median."""
        summary = self.summary(name)
        return None if summary is None else self.audio_seconds / summary.median * 1e3


def markdown(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table; every row as long as the header."""
    lines = ["| " + " | ".join(header) + " |", "| " + " | ".join("---" for _ in header) + " |"]
    for row in rows:
        if len(row) != len(header):
            raise ValueError(f"{len(row)} cells under {len(header)} headings")
        lines.append("| " + " | ".join(row) + " |")
    return "\n".join(lines)


def _names(blocks: Sequence[Block]) -> list[str]:
    return list(dict.fromkeys(name for block in blocks for name in (*block.times_ms, *block.notes)))


def _time_cell(block: Block, name: str) -> str:
    summary = block.summary(name)
    if summary is None:
        return "failed" if name in block.notes else "–"
    spread = f"({summary.low:.1f}–{summary.high:.1f})" if summary.num_samples > 1 else "(once)"
    return f"{summary.median:.1f} {spread}"


def _ratio_rows(blocks: Sequence[Block], names: Sequence[str]) -> list[list[str]]:
    """How many times as fast the engine is as each peer, and what share of each floor's speed it has."""
    rows = []
    for engine in (name for name in names if name.startswith(ENGINE_PREFIX)):
        for other in (name for name in names if not name.startswith(ENGINE_PREFIX)):
            is_floor = other.startswith(FLOOR_PREFIX)
            cells = []
            for block in blocks:
                mine, theirs = block.summary(engine), block.summary(other)
                ratio = theirs.median / mine.median if mine and theirs else None
                cells.append("–" if ratio is None else f"{100 * ratio:.0f} %" if is_floor else f"{ratio:.2f} ×")
            rows.append([f"{engine}: {'share of' if is_floor else 'faster than'} {other}", *cells])
    return rows


def tables(blocks: Sequence[Block]) -> str:
    """Markdown of all blocks: one table for each sweep over batches, and for each sweep over lengths."""
    parts = []
    for title, group, label in _sweeps(blocks):
        names = _names(group)
        header = [title, *(label(block) for block in group)]
        times = [[f"{name}, ms", *(_time_cell(block, name) for block in group)] for name in names]
        rates = []
        for name in names:
            values = [block.throughput(name) for block in group]
            rates.append([f"{name}, audio-s/s", *("–" if value is None else f"{value:.1f}" for value in values)])
        rows = [["packed rows", *(str(block.rows) for block in group)], *times, *rates, *_ratio_rows(group, names)]
        parts.append(markdown(header, rows))
    notes = [
        f"- {name} at B={block.batch}, {block.seconds:g} s: {note}"
        for block in blocks
        for name, note in block.notes.items()
    ]
    return "\n\n".join([*parts, *(["\n".join(notes)] if notes else [])])


def _sweeps(blocks: Sequence[Block]) -> list[tuple[str, list[Block], Any]]:
    """Blocks that differ in the batch only, then those that differ in the length only; none twice."""
    found: list[tuple[str, list[Block], Any]] = []
    shown: set[int] = set()
    for has_voice in sorted({block.has_voice for block in blocks}):
        mine = [block for block in blocks if block.has_voice == has_voice]
        voice = "with a 6 s voice" if has_voice else "no voice"
        for seconds in sorted({block.seconds for block in mine}):
            group = sorted((block for block in mine if block.seconds == seconds), key=lambda block: block.batch)
            if len(group) > 2:
                found.append((f"{seconds:g} s each, {voice}", group, lambda block: f"B={block.batch}"))
                shown.update(map(id, group))
        for batch in sorted({block.batch for block in mine}):
            group = sorted((block for block in mine if block.batch == batch), key=lambda block: block.seconds)
            if any(id(block) not in shown for block in group):
                found.append((f"B={batch}, {voice}", group, lambda block: f"{block.seconds:g} s"))
    return found


def draw(results: dict[str, Any], blocks: Sequence[Block], path: Path) -> None:
    """Throughput over batch and over length, a panel a sweep, into a PNG. Needs matplotlib."""
    import matplotlib  # type: ignore[import-not-found, unused-ignore]  # noqa: PLC0415 - nothing else here needs it

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    sweeps = [sweep for sweep in _sweeps(blocks) if len(sweep[1]) > 1] or _sweeps(blocks)
    columns = min(3, len(sweeps))
    grid = (math.ceil(len(sweeps) / columns), columns)
    figure, axes = pyplot.subplots(*grid, figsize=(5.5 * grid[1], 4.2 * grid[0]), squeeze=False, layout="constrained")
    names = _names(blocks)
    for axis, (title, group, _) in zip(axes.flat, sweeps, strict=False):
        over_batch = len({block.batch for block in group}) > 1
        for index, name in enumerate(names):
            points = [(block.batch if over_batch else block.seconds, block.throughput(name)) for block in group]
            kept = [(x, y) for x, y in points if y is not None]
            if kept:
                style = "--" if name.startswith(FLOOR_PREFIX) else "-"
                axis.plot(*zip(*kept, strict=True), style, marker="o", markersize=3, color=f"C{index}", label=name)
        axis.set(title=title, xlabel="batch" if over_batch else "seconds of audio", ylabel="seconds of audio a second")
        axis.set_xscale("log", base=2)
        ticks = sorted({block.batch if over_batch else block.seconds for block in group})
        axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        axis.set_yscale("log")
        axis.grid(visible=True, which="both", alpha=0.25)
    for axis in axes.flat[len(sweeps) :]:
        axis.axis("off")
    axes.flat[0].legend(fontsize=7)
    clocks = blocks[-1].clocks_after.get("clocks.sm", "")
    figure.suptitle(f"{results['date']} · {results['device']} · torch {results['torch']} · {clocks}", fontsize=9)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def main() -> None:
    for name in sys.argv[1:]:
        results = json.loads(Path(name).read_text(encoding="utf-8"))
        blocks = [Block(**block) for block in results["blocks"]]
        draw(results, blocks, Path(name).with_suffix(".png"))
        print(tables(blocks))


if __name__ == "__main__":
    main()
