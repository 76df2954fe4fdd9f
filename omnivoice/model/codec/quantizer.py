"""Residual vector quantisation: each codebook codes what the ones before it left over."""

from __future__ import annotations

from typing import cast

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn


class Codebook(nn.Module):
    """Centres in the codebook's own space, (codebook_size, codebook_dim)."""

    embed: Tensor

    def __init__(self, codebook_size: int, codebook_dim: int) -> None:
        super().__init__()
        self.register_buffer("embed", torch.empty(codebook_size, codebook_dim))

    def nearest(self, points: Tensor) -> Tensor:
        """Index of the nearest centre: (..., codebook_dim) → int64 (...)."""
        # |x|² changes no winner in exact arithmetic but does in a near tie of float32, where the published codes
        # were computed with it.
        squared = points.square().sum(-1, keepdim=True) - 2 * points @ self.embed.T + self.embed.square().sum(-1)
        return squared.argmin(-1)


class VectorQuantizer(nn.Module):
    """One codebook between its two projections from and to the hidden space."""

    def __init__(self, hidden_size: int, codebook_size: int, codebook_dim: int) -> None:
        super().__init__()
        self.codebook = Codebook(codebook_size, codebook_dim)
        self.project_in = nn.Linear(hidden_size, codebook_dim)
        self.project_out = nn.Linear(codebook_dim, hidden_size)

    def encode(self, hidden: Tensor) -> Tensor:
        """(batch, frames, hidden_size) → codes (batch, frames)."""
        return self.codebook.nearest(self.project_in(hidden))

    def decode(self, codes: Tensor) -> Tensor:
        """Codes (batch, frames) → (batch, frames, hidden_size)."""
        projected: Tensor = self.project_out(F.embedding(codes, self.codebook.embed))
        return projected


class ResidualQuantizer(nn.Module):
    """The stack of codebooks. Tensors are named `quantizers.<index>.…` in a checkpoint."""

    def __init__(self, num_codebooks: int, hidden_size: int, codebook_size: int, codebook_dim: int) -> None:
        super().__init__()
        self.quantizers = nn.ModuleList(
            VectorQuantizer(hidden_size, codebook_size, codebook_dim) for _ in range(num_codebooks)
        )

    def encode(self, hidden: Tensor) -> Tensor:
        """(batch, frames, hidden_size) → codes (batch, num_codebooks, frames)."""
        codes = []
        for quantizer in self.layers():
            codes.append(quantizer.encode(hidden))
            hidden = hidden - quantizer.decode(codes[-1])
        return torch.stack(codes, dim=1)

    def decode(self, codes: Tensor) -> Tensor:
        """Codes (batch, num_codebooks, frames) → (batch, frames, hidden_size)."""
        first, *others = (quantizer.decode(codes[:, index]) for index, quantizer in enumerate(self.layers()))
        return sum(others, start=first)

    def layers(self) -> list[VectorQuantizer]:
        """The codebooks in their order, as what they are."""
        return cast("list[VectorQuantizer]", list(self.quantizers))
