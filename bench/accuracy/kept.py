"""What `generate` leaves and `listen` reads: a folder with `accuracy.json` and the codes of every row."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bench.accuracy.agreement import Pieces
from bench.accuracy.rows import Row


class Folder:
    """Rows are written as they end, so that a run that is cut keeps those before."""

    def __init__(self, path: Path, results: dict[str, Any]) -> None:
        self.path = path
        self.results = results

    @classmethod
    def new(cls, path: Path, about: Mapping[str, Any]) -> Folder:
        (path / "codes").mkdir(parents=True, exist_ok=True)
        return cls(path, {**about, "texts": {}, "rows": {}, "forced": {}, "not_there": {}})

    @classmethod
    def at(cls, path: Path) -> Folder:
        return cls(path, json.loads((path / "accuracy.json").read_text("utf-8")))

    def keep(self, row: Row, codes: Mapping[str, Pieces], figures: Mapping[str, Any]) -> None:
        """Codes go into a file of their own: all pieces one behind the other, int16 (8, frames), and whose they are."""
        owned = [(name, piece) for name, pieces in codes.items() for piece in pieces]
        np.savez_compressed(
            self.path / "codes" / f"{row.slug}.npz",
            codes=np.concatenate([piece for _, piece in owned], axis=1).astype(np.int16),
            frames=np.array([piece.shape[1] for _, piece in owned]),
            names=np.array([name for name, _ in owned]),
        )
        self.results["rows"][row.slug] = {"name": row.name, "kind": row.kind, **figures}
        self.write()

    def codes(self, slug: str) -> dict[str, Pieces]:
        """The codes of a row, by the utterances' names."""
        found: dict[str, Pieces] = {}
        with np.load(self.path / "codes" / f"{slug}.npz") as file:
            pieces = np.split(file["codes"], np.cumsum(file["frames"])[:-1], axis=1)
            for name, piece in zip(file["names"], pieces, strict=True):
                found.setdefault(str(name), []).append(piece)
        return found

    def write(self) -> None:
        (self.path / "accuracy.json").write_text(json.dumps(self.results, indent=1) + "\n", encoding="utf-8")
