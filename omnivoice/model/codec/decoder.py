"""From codes to waveforms: rows of any lengths in one pass, each as if it were alone.

Rows lie one behind another on one time axis, a few empty frames apart. Every convolution pads its input with zeros, and
no window reaches further than the gap; so where the input of *every* convolution is zero in the gaps, a row sees
exactly what it would see alone. Those inputs, but for the first, come out of a Snake activation, which zeroes the gaps
on its way. Nothing else is padded: short and long rows share a pass without waste.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from omnivoice.model.codec.passes import MAX_PASS_FRAMES, bucket, plan_passes
from omnivoice.parameters import CODEBOOK_SIZE, NUM_CODEBOOKS

if TYPE_CHECKING:
    from transformers.models.dac.modeling_dac import DacDecoder, Snake1d

    from omnivoice.model.codec.network import CodecNetwork

EMPTY = -1
"""In place of a code: a frame that belongs to no row."""
SNAKE_EPSILON = 1e-9
"""Keeps 1 / alpha finite; the published weights were trained with it."""


@dataclass(frozen=True, slots=True)
class DecoderOptions:
    """How to decode. The defaults are exact; on the CPU `tabled`, `channels_last` and `max_pass_frames` matter.

    `tabled` looks a frame's codes up in one table; without it they are projected one by one, as in the network.
    `allow_tf32` lets convolutions round their inputs to 10 bits of mantissa: about twice as fast, 3e-4 relative error.
    `fused` is the Triton kernel between convolutions, off the torch expression. `channels_last` and `autotune` change
    which kernels the convolution library picks, the latter by trying all of them once a size.
    """

    tabled: bool = True
    allow_tf32: bool = False
    fused: bool = True
    channels_last: bool = False
    autotune: bool = False
    max_pass_frames: int = MAX_PASS_FRAMES


@dataclass(frozen=True, slots=True)
class _Convolution:
    """A convolution over the last axis of (batch, channels, 1, samples), without its bias."""

    weight: Tensor
    bias: Tensor
    stride: int
    padding: int
    dilation: int
    output_padding: int
    is_transposed: bool

    @classmethod
    def of(cls, module: nn.Conv1d | nn.ConvTranspose1d, layout: torch.memory_format) -> _Convolution:
        if module.groups != 1 or module.bias is None or not isinstance(module.padding, tuple):
            raise ValueError(f"the decoder has no such convolution: {module}")
        return cls(
            weight=module.weight.detach()[:, :, None].contiguous(memory_format=layout),
            bias=module.bias.detach(),
            stride=module.stride[0],
            padding=module.padding[0],
            dilation=module.dilation[0],
            output_padding=module.output_padding[0],
            is_transposed=isinstance(module, nn.ConvTranspose1d),
        )

    def __call__(self, hidden: Tensor, options: DecoderOptions) -> Tensor:
        # Not F.conv2d: there TF32 is a flag of the whole process, which another thread may need the other way round.
        return torch._convolution(
            hidden,
            self.weight,
            None,
            (1, self.stride),
            (0, self.padding),
            (1, self.dilation),
            self.is_transposed,
            (0, self.output_padding),
            1,
            options.autotune,
            False,
            True,
            options.allow_tf32,
        )


@dataclass(frozen=True, slots=True)
class _Stage:
    """What precedes a convolution (the last one's bias, the residual, Snake), and the convolution."""

    bias: Tensor
    alpha: Tensor
    inverse: Tensor
    adds_residual: bool
    keeps_sum: bool
    convolution: _Convolution


class Snake(Protocol):
    """`snake_masked`, in Triton or in torch; see `snake_masked_torch`."""

    def __call__(
        self,
        x: Tensor,
        bias: Tensor,
        residual: Tensor | None,
        alpha: Tensor,
        inverse: Tensor,
        valid: Tensor,
        keeps_sum: bool,
    ) -> tuple[Tensor | None, Tensor]: ...


def snake_masked_torch(
    x: Tensor,
    bias: Tensor,
    residual: Tensor | None,
    alpha: Tensor,
    inverse: Tensor,
    valid: Tensor,
    keeps_sum: bool,
) -> tuple[Tensor | None, Tensor]:
    """The twin of `omnivoice.kernels.snake.snake_masked`, in any floating dtype; `x` and `residual` are spent too."""
    total = x.add_(_by_channel(bias))
    if residual is not None:
        total = residual.add_(total)
    active = torch.mul(total, _by_channel(alpha)).sin_().square_().mul_(_by_channel(inverse)).add_(total)
    # Where nothing is to be zeroed a CPU saves the pass; a GPU would have to be waited for.
    if valid.is_cuda or not valid.all():
        _zero_gaps(active, valid)
    return (total if keeps_sum else None), active


def _zero_gaps(active: Tensor, valid: Tensor) -> None:
    num_frames = valid.shape[1]
    frames = active.view(*active.shape[:3], num_frames, active.shape[3] // num_frames)
    frames.masked_fill_(~valid[:, None, None, :, None], 0.0)


class WaveformDecoder:
    """The network's decoding half, laid out for speed. Holds no state: any thread, any stream."""

    def __init__(self, network: CodecNetwork, options: DecoderOptions | None = None) -> None:
        self.options = options or DecoderOptions()
        first = network.fc2.weight
        self.device, self.dtype = first.device, first.dtype
        self._layout = torch.channels_last if self.options.channels_last else torch.contiguous_format
        self._network = network
        self._table = _frame_table(network) if self.options.tabled else None
        self._offsets = torch.arange(NUM_CODEBOOKS, device=self.device) * CODEBOOK_SIZE
        self._first = _Convolution.of(network.acoustic_decoder.conv1, self._layout)
        self._stages = tuple(_stages(network.acoustic_decoder, self._first, self._layout))
        self.gap = _reach([self._first, *(stage.convolution for stage in self._stages)])
        self._snake = self._pick_snake()
        if self.device.type == "cuda":
            # The tables were computed on this thread's stream; those that decode may be others.
            torch.cuda.current_stream(self.device).synchronize()

    def decode(self, rows: Sequence[Tensor], on_pass: Callable[[], None] = lambda: None) -> list[Tensor]:
        """Codes (frames, 8) on the device → waveforms (frames · 960,) there, views of their pass.

        Runs on the current stream and never waits for it. `on_pass` is called after each pass.
        """
        waveforms = []
        lengths = [len(row) for row in rows]
        with torch.inference_mode():
            for plan in plan_passes(lengths, self.gap, self.options.max_pass_frames):
                members = rows[plan.first : plan.first + len(plan.starts)]
                num_frames = bucket(plan.num_frames) if self.device.type == "cuda" else plan.num_frames
                waveform = self.decode_frames(_lay_out(members, plan.starts, num_frames)[None])[0]
                hop = len(waveform) // num_frames
                for row, start in zip(members, plan.starts, strict=True):
                    waveforms.append(waveform[start * hop : (start + len(row)) * hop])
                on_pass()
        return waveforms

    def decode_frames(self, codes: Tensor) -> Tensor:
        """Codes (batch, frames, 8), `EMPTY` in frames of no row → (batch, frames · 960), meaningless in those frames.

        `gap` empty frames keep two rows of one time axis apart; those of the batch are apart anyway.
        """
        valid = (codes[:, :, 0] != EMPTY).contiguous()
        hidden = self._embed(codes.clamp(min=0))
        hidden.masked_fill_(~valid[:, :, None], 0.0)
        x = self._first(hidden.mT[:, :, None].contiguous(memory_format=self._layout), self.options)
        kept: Tensor | None = None
        for stage in self._stages:
            residual = kept if stage.adds_residual else None
            total, active = self._snake(
                x, stage.bias, residual, stage.alpha, stage.inverse, valid, keeps_sum=stage.keeps_sum
            )
            # A sum that nobody adds again is let go of before the convolution asks for memory.
            kept = total if stage.keeps_sum or stage.adds_residual else kept
            del x, residual, total
            x = stage.convolution(active, self.options)
            del active
        return x[:, 0, 0] + self._stages[-1].convolution.bias

    def _embed(self, codes: Tensor) -> Tensor:
        """Codes (batch, frames, 8) → what the convolutions start from, (batch, frames, channels)."""
        if self._table is None:
            hidden: Tensor = self._network.fc2(self._network.quantizer.decode(codes.mT))
            return hidden
        return F.embedding(codes + self._offsets, self._table).sum(dim=2)

    def _pick_snake(self) -> Snake:
        if self.device.type != "cuda" or not self.options.fused:
            return snake_masked_torch
        # Imported here because only CUDA has it.
        from omnivoice.kernels.snake import snake_masked  # noqa: PLC0415

        return snake_masked


def _frame_table(network: CodecNetwork) -> Tensor:
    """What each code adds to a decoder's input frame: (8 · codebook_size, channels), codebook after codebook.

    From a code to that input everything is linear: the codebook's projection, the sum over codebooks and `fc2`. So
    one lookup does them all. Computed in float64, so that it is as near as computing them one by one.
    """
    weight = network.fc2.weight.detach().double()
    tables = []
    for index, layer in enumerate(network.quantizer.layers()):
        out = layer.project_out
        table = layer.codebook.embed.double() @ (weight @ out.weight.detach().double()).T
        table += weight @ out.bias.detach().double()
        if index == 0:
            table += network.fc2.bias.detach().double()
        tables.append(table)
    return torch.cat(tables).to(network.fc2.weight.dtype)


def _stages(decoder: DacDecoder, first: _Convolution, layout: torch.memory_format) -> Iterator[_Stage]:
    previous = first

    def stage(
        snake: Snake1d,
        module: nn.Conv1d | nn.ConvTranspose1d,
        adds_residual: bool = False,
        keeps_sum: bool = False,
    ) -> _Stage:
        nonlocal previous
        alpha = snake.alpha.detach().reshape(-1)
        inverse = (alpha + SNAKE_EPSILON).reciprocal()
        convolution = _Convolution.of(module, layout)
        made = _Stage(previous.bias, alpha, inverse, adds_residual, keeps_sum, convolution)
        previous = convolution
        return made

    for index, block in enumerate(decoder.block):
        yield stage(block.snake1, block.conv_t1, adds_residual=index > 0)
        for unit in (block.res_unit1, block.res_unit2, block.res_unit3):
            yield stage(unit.snake1, unit.conv1, adds_residual=unit is not block.res_unit1, keeps_sum=True)
            yield stage(unit.snake2, unit.conv2)
    yield stage(decoder.snake1, decoder.conv2, adds_residual=True)


def _reach(convolutions: Sequence[_Convolution]) -> int:
    """Frames that the widest window reaches beyond its own sample."""
    gap, factor = 1, 1
    for convolution in convolutions:
        if convolution.is_transposed:
            # The kernel is two strides long: a sample's output spills over its neighbours only.
            factor *= convolution.stride
        else:
            gap = max(gap, -(-convolution.padding // factor))
    return gap


def _lay_out(rows: Sequence[Tensor], starts: Sequence[int], num_frames: int) -> Tensor:
    """(num_frames, 8): the rows at their starts, `EMPTY` between and behind them."""
    ends = [start + len(row) for row, start in zip(rows, starts, strict=True)]
    gaps = [start - end for start, end in zip([*starts[1:], num_frames], ends, strict=True)]
    filler = rows[0].new_full((max(gaps), NUM_CODEBOOKS), EMPTY)
    pieces = [piece for row, gap in zip(rows, gaps, strict=True) for piece in (row, filler[:gap])]
    return torch.cat(pieces)


def _by_channel(vector: Tensor) -> Tensor:
    return vector[:, None, None]
