"""Sampling parameters and the bounds on what one request may ask for.

The names and defaults are the model's own. `BOUNDS` is the only place where a range is written down: the engine checks
requests against it, and the HTTP layer builds its schema from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import NamedTuple

from omnivoice.errors import InvalidRequest

SAMPLE_RATE = 24_000
"""Samples a second of every waveform that the engine takes or returns."""
HOP_LENGTH = 960
"""Samples a codec frame."""
FRAME_RATE = SAMPLE_RATE // HOP_LENGTH
"""Codec frames a second (25)."""

REFERENCE_RMS = 0.1
"""Reference clips quieter than this are lifted to it, the level of the model's training; results are scaled back."""

NUM_CODEBOOKS = 8
CODEBOOK_SIZE = 1024
"""Codes of each of the codec's codebooks; the model has one more, the mask."""

MAX_TEXT_CHARS = 50_000
MAX_AUDIO_SECONDS = 3_600.0
"""Longest audio that one request may ask for, all chunks together."""
MAX_CHUNK_SECONDS = 120.0
"""Longest audio that is generated in one piece; attention's cost grows with its square."""


class Bounds(NamedTuple):
    """Inclusive range of a number."""

    low: float
    high: float

    def check(self, field: str, value: float) -> None:
        """Raise `InvalidRequest` unless `value` is a finite number inside the range."""
        if not (isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)):
            raise InvalidRequest(field, f"must be a number {self}")
        if not self.low <= value <= self.high:
            raise InvalidRequest(field, f"must be {self}, not {_shown(value)}")

    def __str__(self) -> str:
        return f"from {_shown(self.low)} to {_shown(self.high)}"


def _shown(number: float) -> str:
    return f"{number:g}" if isinstance(number, float) else str(number)


BOUNDS: dict[str, Bounds] = {
    "num_step": Bounds(1, 128),
    "guidance_scale": Bounds(0.0, 20.0),
    "t_shift": Bounds(0.01, 10.0),
    "layer_penalty_factor": Bounds(0.0, 100.0),
    "position_temperature": Bounds(0.0, 100.0),
    "class_temperature": Bounds(0.0, 100.0),
    "audio_chunk_duration": Bounds(1.0, 60.0),
    "audio_chunk_threshold": Bounds(1.0, MAX_CHUNK_SECONDS),
    "pad_duration": Bounds(0.0, 10.0),
    "fade_duration": Bounds(0.0, 10.0),
    "speed": Bounds(0.25, 4.0),
    "duration": Bounds(1.0 / FRAME_RATE, MAX_AUDIO_SECONDS),
    "seed": Bounds(0, 2**64 - 1),
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How one request is generated and finished. Raises `InvalidRequest` for a value out of `BOUNDS`."""

    num_step: int = 32
    guidance_scale: float = 2.0
    t_shift: float = 0.1
    layer_penalty_factor: float = 5.0
    position_temperature: float = 5.0
    class_temperature: float = 0.0
    denoise: bool = True
    preprocess_prompt: bool = True
    postprocess_output: bool = True
    audio_chunk_duration: float = 15.0
    audio_chunk_threshold: float = 30.0
    pad_duration: float = 0.1
    fade_duration: float = 0.1

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.type == "bool":
                if not isinstance(value, bool):
                    raise InvalidRequest(field.name, "must be true or false")
                continue
            BOUNDS[field.name].check(field.name, value)
            if field.type == "int" and not isinstance(value, int):
                raise InvalidRequest(field.name, f"must be a whole number, not {value!r}")
