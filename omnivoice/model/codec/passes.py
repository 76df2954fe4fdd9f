"""Which rows are decoded together, and where in the pass each lies. Host integers only: lengths are shapes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MAX_PASS_FRAMES = 2048
"""Frames a pass. At the published size a frame takes about 0.4 MB (three float32 activations of 32 channels at 960
samples), so that a pass stays under 1 GB beside the convolutions' own scratch. Half of it already keeps a GPU busy."""
STEPS_PER_OCTAVE = 8
MIN_STEP = 16


@dataclass(frozen=True, slots=True)
class Pass:
    """Rows `first` to `first + len(starts) - 1`, at `starts` on a time axis of `num_frames`."""

    first: int
    starts: tuple[int, ...]
    num_frames: int


def plan_passes(lengths: Sequence[int], gap: int, max_frames: int = MAX_PASS_FRAMES) -> list[Pass]:
    """Lay rows of `lengths` frames one behind another, `gap` empty frames apart, on time axes of at most `max_frames`.

    Rows keep their order; the passes are about equally long. A row longer than `max_frames` has a pass to itself.
    """
    passes: list[Pass] = []
    first = 0
    while first < len(lengths):
        left = sum(lengths[first:]) + gap * (len(lengths) - first - 1)
        target = left / -(-left // max_frames)
        starts, end = [0], lengths[first]
        for length in lengths[first + 1 :]:
            start = end + gap
            if start + length > max_frames or start + length - target > target - end:
                break
            starts.append(start)
            end = start + length
        passes.append(Pass(first, tuple(starts), end))
        first += len(starts)
    return passes


def bucket(num_frames: int) -> int:
    """Round up to one of eight sizes an octave, multiples of 16.

    A convolution library chooses and prepares its kernels anew for every size that it has not seen, which takes
    longer than a short decode. With empty frames behind the last row, a few dozen sizes serve every length.
    """
    step = max(MIN_STEP, (1 << ((num_frames - 1).bit_length() - 1)) // STEPS_PER_OCTAVE if num_frames > 1 else 0)
    return -(-num_frames // step) * step


PASS_SIZES = tuple(sorted({bucket(num_frames) for num_frames in range(1, MAX_PASS_FRAMES + 1)}))
"""All sizes of a pass but those of a single row that is longer."""
