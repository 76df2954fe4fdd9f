"""The speech on disk, and its codes: which utterance lies where, who says it, and what."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from omnivoice.text import estimate_frames
from training.stage import Stage, replacing
from training.text import Line, read_lines

POLL_SECONDS = 2.0


def wait_for(paths: Sequence[Path], stage: Stage) -> bool:
    """Wait until all parts exist (the speech may be in the making beside us); False where time runs out first."""
    while not all(path.exists() for path in paths):
        if stage.is_out_of_time:
            return False
        time.sleep(POLL_SECONDS)
    return True


@dataclass(frozen=True, slots=True)
class Corpus:
    """Utterances as codes: `codes` int16 (frames of all, 8), utterance i from `starts[i]` to `starts[i + 1]`."""

    codes: NDArray[np.int16]
    starts: NDArray[np.int64]
    table: NDArray[np.int32]
    lines: list[Line]

    @classmethod
    def read(cls, work: Path) -> Corpus:
        content = np.load(work / "codes.npz")
        table = content["table"]
        starts = np.concatenate([[0], np.cumsum(table[:, 2], dtype=np.int64)])
        return cls(content["codes"], starts, table, read_lines(work / "text.jsonl"))

    def line(self, utterance: int) -> Line:
        return self.lines[int(self.table[utterance, 0])]

    def voice(self, utterance: int) -> int:
        return int(self.table[utterance, 1])

    def of(self, utterance: int, is_last: bool = True) -> NDArray[np.int16]:
        """Codes (frames, 8); without the silence at the end where another utterance follows."""
        start = self.starts[utterance]
        return self.codes[start : start + self.table[utterance, 2 if is_last else 3]]

    def utterances(self, voice: int, held_out: bool = False) -> NDArray[np.int64]:
        """Those of one voice, of the lines that are learnt from or of those that are not."""
        kept = np.array([line.is_held_out == held_out for line in self.lines])
        return np.flatnonzero((self.table[:, 1] == voice) & kept[self.table[:, 0]])

    def by_pace(self, voice: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Utterances of a voice to learn from, and their paces, which rise: voiced frames over the length rule's."""
        utterances = self.utterances(voice)
        estimates = np.array([estimate_frames(self.line(one).written) for one in utterances])
        paces = self.table[utterances, 3] / estimates
        order = np.argsort(paces, kind="stable")
        return utterances[order], paces[order]


def write_codes(path: Path, codes: NDArray[np.int16], table: NDArray[np.int32]) -> None:
    with replacing(path) as partial, partial.open("wb") as file:
        np.savez(file, codes=codes, table=table)
