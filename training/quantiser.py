"""The codebooks while they learn: centres that follow running averages of what falls to them."""

from __future__ import annotations

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from omnivoice.model.codec.network import CodecNetwork
from omnivoice.parameters import NUM_CODEBOOKS

DECAY = 0.98
DEAD = 0.1
"""Codes whose running average of points a batch falls below this start anew."""


class Averages(nn.Module):
    """Running averages behind the codebooks: points a code, (8, 1024), and their sums, (8, 1024, codebook_dim)."""

    size: Tensor
    total: Tensor

    def __init__(self, codebook_size: int, codebook_dim: int) -> None:
        super().__init__()
        self.register_buffer("size", torch.zeros(NUM_CODEBOOKS, codebook_size))
        self.register_buffer("total", torch.zeros(NUM_CODEBOOKS, codebook_size, codebook_dim))

    def perplexity(self) -> float:
        """How many codes of a book are in use, weighed by how much; the mean of all books."""
        share = self.size / self.size.sum(1, keepdim=True)
        return float(torch.special.entr(share).sum(1).exp().mean())

    def begin(self, book: int, embed: Tensor, points: Tensor, drawn: Tensor) -> None:
        """Take the points (n, codebook_dim) with the indices `drawn` (1024,) of the first batch of all for centres."""
        embed.copy_(points[drawn])
        self.total[book], self.size[book] = embed, 1.0

    def update(self, book: int, embed: Tensor, points: Tensor, codes: Tensor, drawn: Tensor) -> None:
        """Take in a batch's points (n, codebook_dim) and their codes (n,), and move the centres `embed` in place.

        A centre that nothing falls to starts anew from the point that `drawn` (1024,) has for it.
        """
        size, total = self.size[book], self.total[book]
        size.lerp_(torch.zeros_like(size).index_add_(0, codes, torch.ones_like(points[:, 0])), 1 - DECAY)
        total.lerp_(torch.zeros_like(embed).index_add_(0, codes, points), 1 - DECAY)
        dead = size < DEAD
        total[:] = torch.where(dead[:, None], points[drawn], total)
        size[:] = torch.where(dead, torch.ones_like(size), size)
        embed.copy_(total / size[:, None])


def quantise(
    network: CodecNetwork, averages: Averages, hidden: Tensor, num_books: Tensor, drawn: Tensor, is_first: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """`hidden` (batch, frames, size) through the first `num_books` (batch,) codebooks; commitment loss and residual.

    The residual is the power that the books leave over, as a share of all, the mean over books; nothing learns from it:
    an encoder that did would say little, since that is what leaves little over.
    The centres learn from what they are given here, which is what all books before them leave over, also where later
    ones are not heard; gradients pass a codebook as if it were not there.
    """
    result, left, loss, power = torch.zeros_like(hidden), hidden, hidden.new_zeros(()), hidden.new_zeros(())
    for index, layer in enumerate(network.quantizer.layers()):
        points = layer.project_in(left)
        with torch.no_grad():
            if is_first:
                averages.begin(index, layer.codebook.embed, points.flatten(0, 1), drawn[index])
            codes = layer.codebook.nearest(points)
            centres = F.embedding(codes, layer.codebook.embed)
            averages.update(index, layer.codebook.embed, points.flatten(0, 1), codes.flatten(), drawn[index])
        loss = loss + F.mse_loss(points, centres)
        change = layer.project_out(points + (centres - points).detach())
        left = left - change
        power = power + left.detach().square().mean()
        result = result + change * (index < num_books)[:, None, None]
    return result, loss / NUM_CODEBOOKS, power / (NUM_CODEBOOKS * hidden.detach().square().mean())
