"""What goes over the pipe between the benchmark and a peer's process: one JSON object a line.

Plain data only: the module is loaded in the peers' processes too, where `omnivoice` is the reference package.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

FRAME_RATE = 25


@dataclass(frozen=True, slots=True)
class Voice:
    """A reference voice: `codes` [8][frames], each 0…1023, and what it says."""

    codes: list[list[int]]
    text: str


@dataclass(frozen=True, slots=True)
class Work:
    """One batch to generate: texts, all to `frames` frames of audio, or with None each as long as the package thinks.

    Text number i has the seed i, and is designed by `instructs` number i where there are any.
    """

    texts: list[str]
    frames: int | None
    num_step: int = 32
    voice: Voice | None = None
    position_temperature: float = 5.0
    language: str = "en"
    instructs: list[str] | None = None

    @property
    def duration(self) -> float | None:
        """Seconds that every package rounds down to `frames`: half a frame over, as 4.08 × 25 is below 102."""
        return None if self.frames is None else (self.frames + 0.5) / FRAME_RATE

    @property
    def audio_seconds(self) -> float:
        """Raises `ValueError` for a length that is left to the package."""
        if self.frames is None:
            raise ValueError("the package chooses the length")
        return len(self.texts) * self.frames / FRAME_RATE

    def to_line(self, **more: object) -> str:
        return json.dumps(asdict(self) | more)

    @classmethod
    def from_message(cls, message: dict[str, Any]) -> Work:
        """Read what `to_line` wrote; further keys are the caller's."""
        fields = {name: message[name] for name in cls.__slots__}
        if fields["voice"] is not None:
            fields["voice"] = Voice(**fields["voice"])
        return cls(**fields)
