"""The packed layout: sequences of any length end to end in one tensor, with nothing between them.

B requests make 2B sequences, `cond0, uncond0, cond1, uncond1, …`. `cu_seqlens` holds their offsets and one more entry
for a tail sequence, which owns padding rows where a batch is rounded up to a bucket; here, in eager mode, it is empty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Packing:
    """Where each sequence lies among the T packed rows.

    `lengths` has an entry a sequence (a zero where a branch is empty); `cu_seqlens` is int32 (sequences + 2,);
    `positions` int64 (T,) counts from 0 in every sequence.
    """

    lengths: tuple[int, ...]
    cu_seqlens: torch.Tensor
    positions: torch.Tensor

    @classmethod
    def of(cls, lengths: Sequence[int], device: torch.device) -> Packing:
        sizes = torch.tensor([0, *lengths, 0])
        cu_seqlens = sizes.cumsum(0).to(torch.int32)
        positions = torch.cat([torch.arange(length) for length in lengths])
        return cls(tuple(lengths), cu_seqlens.to(device), positions.to(device))

    @property
    def num_rows(self) -> int:
        return sum(self.lengths)

    @property
    def max_length(self) -> int:
        return max(self.lengths)
