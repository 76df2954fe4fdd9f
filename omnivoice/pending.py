"""What the engine knows of a request from its admission to its end."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

import numpy as np
import torch

from omnivoice.device import Mark, to_host
from omnivoice.finisher import Unmasked
from omnivoice.parameters import CODEBOOK_SIZE
from omnivoice.planning import Plan
from omnivoice.request import SynthesisRequest, VoicePrompt


@dataclass(slots=True, eq=False)
class FirstChunk:
    """The codes of a text's first chunk on their way to the host, where they become the voice of the rest."""

    codes: torch.Tensor
    mark: Mark

    def voice(self, text: str) -> VoicePrompt:
        """The voice that says `text` here; to be asked for once `mark` is reached."""
        codes = np.ascontiguousarray(self.codes.numpy().T, dtype=np.int64)
        # A masked cell fails the request when it is finished; until then a code must stand in for it.
        return VoicePrompt(codes=codes.clip(max=CODEBOOK_SIZE - 1), ref_text=text)


@dataclass(slots=True, eq=False)
class Pending:
    """A request that was admitted and has not ended: its plan, and the codes (frames, 8) of the chunks that have.

    Without `decodes` its end needs no audio.
    """

    request_id: str
    request: SynthesisRequest
    plan: Plan
    seed: int
    voice: VoicePrompt | None
    codes: list[torch.Tensor | None]
    decodes: bool = True
    first: FirstChunk | None = None
    started_at: float = field(default_factory=time.perf_counter)
    generated_ms: float = 0.0
    batch_size: int = 1

    @property
    def is_generated(self) -> bool:
        return all(codes is not None for codes in self.codes)

    def note_chunk(self, chunk: int, codes: torch.Tensor) -> None:
        """Keep the codes of a chunk; where the others wait for its voice, send them to the host."""
        self.codes[chunk] = codes
        if chunk == 0 and self.voice is None and len(self.codes) > 1:
            self.first = FirstChunk(to_host(codes), Mark(codes.device))
            self.first.mark.set()
        if self.is_generated:
            self.generated_ms = (time.perf_counter() - self.started_at) * 1e3

    def unmasked(self) -> Unmasked:
        """What the finisher takes over."""
        chunks = [codes for codes in self.codes if codes is not None]
        return Unmasked(self, chunks, self.request.params, self.request.voice, self.decodes)
