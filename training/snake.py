"""The codec's activation for training on a GPU, y = x + sin²(αx) / α, one pass over memory each way.

As torch has it, it is five passes forwards and some ten backwards, which were two fifths of a step of the codec.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

EPSILON = 1e-9
"""Keeps 1 / α finite, as in the network's own activation."""
_EPSILON = tl.constexpr(EPSILON)
_BLOCK = 1024


@triton.jit
def _forward(x, alpha, out, channels, samples, BLOCK: tl.constexpr):
    position, line = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK), tl.program_id(1)
    inside, at = position < samples, line.to(tl.int64) * samples + position
    value = tl.load(x + at, mask=inside, other=0.0)
    rate = tl.load(alpha + line % channels)
    sine = tl.sin(rate * value)
    tl.store(out + at, value + sine * sine / (rate + _EPSILON), mask=inside)


@triton.jit
def _backward(x, alpha, gradient, to_x, to_alpha, channels, samples, BLOCK: tl.constexpr):
    """`to_alpha` (lines, blocks) gets a sum for each block."""
    block, line = tl.program_id(0), tl.program_id(1)
    position = block * BLOCK + tl.arange(0, BLOCK)
    inside, at = position < samples, line.to(tl.int64) * samples + position
    value = tl.load(x + at, mask=inside, other=0.0)
    given = tl.load(gradient + at, mask=inside, other=0.0)
    rate = tl.load(alpha + line % channels)
    inverse = 1.0 / (rate + _EPSILON)
    sine = tl.sin(rate * value)
    slope = 2.0 * sine * tl.cos(rate * value)
    tl.store(to_x + at, given * (1.0 + rate * inverse * slope), mask=inside)
    share = given * inverse * (value * slope - inverse * sine * sine)
    tl.store(to_alpha + line * tl.num_programs(0) + block, tl.sum(share, axis=0))


class Snake(torch.autograd.Function):
    """Of `x` float32 (batch, channels, samples) and `alpha` (1, channels, 1)."""

    @staticmethod
    def forward(context: Any, x: Tensor, alpha: Tensor) -> Tensor:
        x = x.contiguous()
        context.save_for_backward(x, alpha)
        out = torch.empty_like(x)
        _forward[_grid(x)](x, alpha, out, x.shape[1], x.shape[2], BLOCK=_BLOCK)
        return out

    @staticmethod
    def backward(context: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, alpha = context.saved_tensors
        to_x, (blocks, lines) = torch.empty_like(x), _grid(x)
        sums = x.new_empty(lines, blocks)
        _backward[blocks, lines](
            x, alpha, gradient.contiguous(), to_x, sums, x.shape[1], x.shape[2], BLOCK=_BLOCK
        )  # fmt: skip
        return to_x, sums.view(x.shape[0], x.shape[1], blocks).sum((0, 2)).view_as(alpha)


def _snake(module: nn.Module, x: Tensor) -> Tensor:
    made: Tensor = Snake.apply(x, module.alpha)
    return made


def fuse_snakes(network: nn.Module) -> None:
    """Have every `Snake1d` of a network on a GPU run as `Snake`."""
    for module in network.modules():
        if type(module).__name__ == "Snake1d":
            module.forward = partial(_snake, module)


def _grid(x: Tensor) -> tuple[int, int]:
    return triton.cdiv(x.shape[2], _BLOCK), x.shape[0] * x.shape[1]
