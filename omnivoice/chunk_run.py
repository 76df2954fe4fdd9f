"""The unit that is scheduled and packed: one chunk of a request, with what is unmasked of it so far."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from omnivoice.parameters import SamplingParams
from omnivoice.request import Codes


@dataclass(slots=True, eq=False)
class ChunkRun:
    """One chunk of a request on its way through the steps.

    `prompt_ids` are the text ids before the target, `voice_codes` int64 (8, frames) the reference between them, or
    None. `codes` (frames, 8) is what is unmasked so far, on the device.
    """

    request_id: str
    chunk: int
    prompt_ids: list[int]
    voice_codes: Codes | None
    frames: int
    params: SamplingParams
    seed: int
    codes: torch.Tensor
    step: int = 0
    batch_size: int = 1

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
