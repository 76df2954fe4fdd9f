"""The unit that is scheduled and packed: one chunk of a request, with what is unmasked of it so far."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from omnivoice.parameters import NUM_CODEBOOKS, SamplingParams
from omnivoice.request import Codes
from omnivoice.text import unmask_counts

IS_TEXT = -1
"""Stands behind the id of a text row, where an audio row has its second codebook's code."""


@dataclass(slots=True, eq=False)
class ChunkRun:
    """One chunk of a request on its way through the steps.

    `prompt_ids` are the text ids before the target, `voice_codes` int64 (8, frames) the reference between them, or
    None. `codes` (frames, 8) is what is unmasked so far, on the device, while no batch holds it; None where that is
    nothing. `schedule` has the cells that each step unmasks; `prompt_rows` int32 (rows, 8) is all that stands before
    the target: a text row carries its id and, behind it, `IS_TEXT`.
    """

    request_id: str
    chunk: int
    prompt_ids: list[int]
    voice_codes: Codes | None
    frames: int
    params: SamplingParams
    seed: int
    codes: torch.Tensor | None = None
    step: int = 0
    batch_size: int = 1
    schedule: tuple[int, ...] = field(init=False)
    prompt_rows: NDArray[np.int32] = field(init=False)

    def __post_init__(self) -> None:
        self.schedule = unmask_counts(self.frames, self.params.num_step, self.params.t_shift)
        self.prompt_rows = np.full((self.cond_length - self.frames, NUM_CODEBOOKS), IS_TEXT, dtype=np.int32)
        self.prompt_rows[: len(self.prompt_ids), 0] = self.prompt_ids
        if self.voice_codes is not None:
            self.prompt_rows[len(self.prompt_ids) :] = self.voice_codes.T

    @property
    def cond_length(self) -> int:
        voice_frames = 0 if self.voice_codes is None else self.voice_codes.shape[1]
        return len(self.prompt_ids) + voice_frames + self.frames

    @property
    def uncond_length(self) -> int:
        """Without guidance the second branch changes nothing: it stays empty."""
        return self.frames if self.params.guidance_scale > 0 else 0

    @property
    def num_tokens(self) -> int:
        return self.cond_length + self.uncond_length

    @property
    def is_done(self) -> bool:
        return self.step >= self.params.num_step
