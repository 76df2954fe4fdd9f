"""The fp8 step against torch: in float32, where the kernels leave row / scale unrounded; products and weights in e4m3.

Triton's interpreter loses the carry where rounding to e4m3 changes the exponent (124.3 becomes 64): rounding itself is
for the tests on a GPU.
"""

from __future__ import annotations

import interpreter  # noqa: F401  first: it mends what the kernels run on
import pytest
import torch
from check_step import CHECKPOINT, CPU, in_step_mode, runs
from torch.nn import functional

from omnivoice import EngineConfig
from omnivoice.attention import SdpaAttention
from omnivoice.executor import EagerExecutor
from omnivoice.graph.executor import GraphExecutor
from omnivoice.graph.fp8 import FP8, QuantisedModel, Weight, multiply_scaled
from omnivoice.graph.graphs import Graphs
from omnivoice.graph.program import Buffers
from omnivoice.graph.tables import Capacity
from omnivoice.graph.tiles import WIDE
from omnivoice.kernels import fp8
from omnivoice.kernels.attention import Blocks
from omnivoice.model.backbone import GATE_GROUP, Backbone, in_turns

EPS = 1e-6
WIDTHS = [64, 80, 1040]
COUNTED = 7


def number(value: int) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.int32)


def rows_of(width: int) -> torch.Tensor:
    """Nine rows: two ordinary ones, zeros, tiny, huge and an outlier, three that are not finite; the last two do not
    count."""
    torch.manual_seed(width)
    x = torch.randn(9, width)
    x[1] *= 1e-3
    x[2] = 0
    x[3] *= 1e-36
    x[4] *= 1e15
    x[5, 3] = -4e4
    x[6, 1] = torch.inf
    x[7:] = torch.nan
    return x


def quantised(rows: torch.Tensor, factor: torch.Tensor | float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    """The slow twin: rows / scale, and the scales times `factor`."""
    largest = rows.abs().amax(dim=1, keepdim=True).clamp_min(1e-30)
    return rows / (largest / 448), largest / 448 * factor


def check(found: torch.Tensor, scales: torch.Tensor, expected: tuple[torch.Tensor, torch.Tensor]) -> None:
    """All but the row that is not finite agree; no scale is zero, what does not count is left alone."""
    finite = slice(0, COUNTED - 1)
    torch.testing.assert_close(found[finite], expected[0][finite], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(scales[finite], expected[1][finite], rtol=1e-5, atol=0.0)
    assert found[finite].abs().max() <= 448.001
    assert scales[finite].min() > 0
    assert (found[6] * scales[6]).isnan().any()
    assert (found[COUNTED:] == -1).all()
    assert (scales[COUNTED:] == -1).all()


def outputs(width: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((9, width), -1.0), torch.full((9, 1), -1.0)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("adds", [False, True])
def test_sums_are_normed_and_quantised(width: int, adds: bool) -> None:
    hidden = rows_of(width)
    addend = torch.randn_like(hidden) * hidden.abs() if adds else None
    expected = hidden if addend is None else hidden + addend
    given = hidden.clone()
    narrow, scales = outputs(width)
    fp8.add_norm_quantise(hidden, addend, narrow, scales, number(COUNTED), EPS)
    torch.testing.assert_close(hidden[:COUNTED], expected[:COUNTED], equal_nan=True)
    torch.testing.assert_close(hidden[COUNTED:], given[COUNTED:], equal_nan=True)
    check(narrow, scales, quantised(expected, torch.rsqrt(expected.square().mean(dim=1, keepdim=True) + EPS)))
    normed = functional.rms_norm(expected, [width], eps=EPS)
    torch.testing.assert_close((narrow * scales)[:6], normed[:6], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_last_sums_leave_their_squares(width: int) -> None:
    hidden, addend = rows_of(width), rows_of(width).flip(1)
    expected = hidden + addend
    squares = torch.full((9,), -1.0)
    fp8.add_sum_squares(hidden, addend, squares, number(COUNTED))
    torch.testing.assert_close(hidden[:COUNTED], expected[:COUNTED], equal_nan=True)
    torch.testing.assert_close(squares[:COUNTED], expected.square().sum(1)[:COUNTED], equal_nan=True)
    assert (squares[COUNTED:] == -1).all()


@pytest.mark.parametrize("width", WIDTHS)
def test_rows_are_quantised(width: int) -> None:
    x = rows_of(width)
    narrow, scales = outputs(width)
    fp8.quantise(x, narrow, scales, number(COUNTED))
    check(narrow, scales, quantised(x))


@pytest.mark.parametrize("width", WIDTHS)
def test_swiglu_is_quantised(width: int) -> None:
    up, gate = rows_of(width), torch.randn(9, width) * 3
    gate[0, :2] = torch.tensor([-200.0, 200.0])
    narrow, scales = outputs(width)
    fp8.gate_quantise(in_turns(gate.T, up.T).T.contiguous(), narrow, scales, number(COUNTED), GATE_GROUP)
    check(narrow, scales, quantised(functional.silu(gate) * up))


def test_weights_are_quantised_row_by_row() -> None:
    torch.manual_seed(1)
    weight = (torch.randn(48, 32) * torch.logspace(-6, 3, 48)[:, None]).bfloat16()
    weight[5] = 0
    made = Weight.of(weight)
    assert made.values.dtype == FP8
    assert made.scales.shape == (1, 48)
    wide, largest = weight.float(), weight.float().abs().amax(dim=1, keepdim=True)
    error = (made.wide(torch.float32) - wide).abs()
    assert (error <= wide.abs() * 2**-4 + largest * 2**-18).all()
    assert (made.wide(torch.bfloat16)[5] == 0).all()
    with pytest.raises(ValueError, match=r"fp8: needs weights .* multiples of 16, not \(48, 40\)"):
        Weight.of(torch.zeros(48, 40))


def test_a_scaled_product_is_that_of_the_dequantised() -> None:
    """torch multiplies e4m3 on the CPU as well: the layout of both scales is what it wants."""
    torch.manual_seed(2)
    weight, x = Weight.of(torch.randn(48, 32) * torch.logspace(-2, 2, 48)[:, None]), torch.randn(24, 32)
    narrow, scales = quantised(x * torch.logspace(-3, 3, 24)[:, None])
    out = torch.zeros(24, 48, dtype=torch.bfloat16)
    multiply_scaled(narrow.to(FP8), scales, weight, out)
    expected = (narrow.to(FP8).float() * scales) @ weight.wide(torch.float32).T
    torch.testing.assert_close(out.float(), expected, rtol=2**-7, atol=1e-6 * float(expected.abs().max()))


def multiply_wide(rows: torch.Tensor, scales: torch.Tensor, weight: Weight, out: torch.Tensor) -> None:
    """The slow twin of `multiply_scaled`."""
    out.copy_((rows.float() * scales) @ weight.wide(torch.float32).T)


def executor_of(folded: Backbone) -> tuple[GraphExecutor, QuantisedModel]:
    capacity = Capacity(64, 4)
    buffers = Buffers.of(folded, capacity, fp8=True)
    model = QuantisedModel(folded, capacity, torch.float32, multiply_wide)
    tiles = {32: WIDE, 64: WIDE._replace(prepares_keys=True, attention=Blocks(64, 64))}
    graphs = Graphs(
        lambda bucket: model.program(buffers, bucket, tiles[bucket]), (32, 64), buffers.tables["sizes"],
        may_capture=lambda: False,
    )  # fmt: skip
    return GraphExecutor(model.backbone, buffers, graphs, tiles.__getitem__), model


def agreement(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    return float(torch.cat([(a == b).flatten() for a, b in zip(found, expected, strict=True)]).float().mean())


@pytest.fixture(scope="module")
def backbone() -> Backbone:
    return Backbone.from_folder(CHECKPOINT, CPU, torch.float32, SdpaAttention())


def test_without_rounding_the_codes_are_those_of_eager(backbone: Backbone) -> None:
    """Everything of the program but fp8 itself: runs that join, leave and pause, on both buckets; and the fallback."""
    executor, model = executor_of(backbone.folded())
    expected = in_step_mode(EagerExecutor(backbone), runs())
    for found in (in_step_mode(executor, runs()), in_step_mode(EagerExecutor(model.backbone), runs())):
        assert all(int(codes.max()) < 1024 for codes in found)
        assert agreement(found, expected) >= 0.98


@pytest.mark.parametrize("option", [{"fp8": True}, {"fp8": True, "dtype": "bfloat16"}], ids=str)
def test_there_is_no_fp8_without_cuda(option: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"^fp8: needs CUDA, not cpu$"):
        EngineConfig(device="cpu", **option).resolved_dtype()  # type: ignore[arg-type]
