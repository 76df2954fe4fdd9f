"""What every stage shares: a log of JSON lines with its curve, a state to restart from, and a limit of time."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

LOG_EVERY = 50
"""Steps between lines of the log; the first and the last step have one too."""
SAVE_SECONDS = 120.0


class Stage:
    """One stage in a work folder: NAME.jsonl, NAME.svg and NAME.pt are its own. `seconds` is how long it may take."""

    def __init__(self, work: Path, name: str, seconds: float = float("inf")) -> None:
        work.mkdir(parents=True, exist_ok=True)
        self.work, self.name = work, name
        self._end = time.monotonic() + seconds
        self._start = time.monotonic()

    @property
    def is_out_of_time(self) -> bool:
        return time.monotonic() >= self._end

    def log(self, **figures: Any) -> None:
        line = {"stage": self.name, "seconds": round(time.monotonic() - self._start, 2), **figures}
        print(json.dumps(line), flush=True)
        with self._path("jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def lines(self) -> list[dict[str, Any]]:
        path = self._path("jsonl")
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()] if path.exists() else []

    def restore(self) -> dict[str, Any] | None:
        path = self._path("pt")
        return torch.load(path, map_location="cpu") if path.exists() else None

    def save(self, state: Mapping[str, Any]) -> None:
        with replacing(self._path("pt")) as path:
            torch.save(dict(state), path)

    def train(
        self,
        num_steps: int,
        first: int,
        step: Callable[[int], Callable[[], dict[str, Any]]],
        state: Callable[[], Mapping[str, Any]],
    ) -> bool:
        """Run `step(index)` from `first` on, saving `state()` now and then; True once all `num_steps` are done.

        `step` returns a function that reads its figures, which is called for steps that are logged: reading waits for
        the device.
        """
        saved = time.monotonic()
        for index in range(first, num_steps):
            read = step(index)
            done = index + 1
            if index % LOG_EVERY == 0 or done == num_steps:
                self.log(step=index, **read())
            if done == num_steps or self.is_out_of_time or time.monotonic() - saved > SAVE_SECONDS:
                self.save({"step": done, **state()})
                saved = time.monotonic()
            if self.is_out_of_time and done < num_steps:
                self.log(step=index, stopped="out of time; the same command goes on from here")
                return False
        draw(self._path("svg"), [(line["step"], line["loss"]) for line in self.lines() if "loss" in line], self.name)
        return True

    def _path(self, ending: str) -> Path:
        return self.work / f"{self.name}.{ending}"


class replacing:  # noqa: N801 - reads as a verb
    """A context that gives a temporary path, which takes the place of `path` at the end: never half a file."""

    def __init__(self, path: Path) -> None:
        self._path, self._partial = path, path.with_name(f"{path.name}.{os.getpid()}.partial")

    def __enter__(self) -> Path:
        return self._partial

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._partial.replace(self._path)
        else:
            self._partial.unlink(missing_ok=True)


def draw(path: Path, points: list[tuple[int, float]], title: str) -> None:
    """Write the curve through `points` (step, loss) as SVG."""
    width, height, edge = 640, 320, 50
    last = max(step for step, _ in points) or 1
    low, high = min(loss for _, loss in points), max(loss for _, loss in points)
    across, up = (width - 2 * edge) / last, (height - 2 * edge) / ((high - low) or 1.0)
    line = " ".join(f"{edge + step * across:.1f},{height - edge - (loss - low) * up:.1f}" for step, loss in points)
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif">'
        f'<rect width="100%" height="100%" fill="white"/><polyline points="{line}" fill="none" stroke="#06c"/>'
        f'<text x="{edge}" y="30">{title}: loss {points[0][1]:.3f} to {points[-1][1]:.3f}, {last + 1} steps</text>'
        f'<text x="5" y="{edge}">{high:.2f}</text><text x="5" y="{height - edge}">{low:.2f}</text></svg>\n',
        encoding="utf-8",
    )
