"""Each kernel against its slow twin in torch, in float32; run by `tests/unit/test_kernels.py`."""

from __future__ import annotations

import interpreter  # noqa: F401  first: it mends what the kernels run on
import pytest
import torch
from torch.nn import functional
from transformers.models.dac.modeling_dac import Snake1d

from omnivoice.attention import SdpaAttention
from omnivoice.kernels import attention, products, rows, unmask
from omnivoice.model.backbone import _rotate, apart
from omnivoice.packing import Packing
from omnivoice.philox import split_seed
from omnivoice.sampling import RowParams, draw_tokens, pick_cells, position_scores, token_log_probs
from training.snake import EPSILON, fuse_snakes

EPS = 1e-6

TILE = products.Tile(64, 64, 32, stages=2, warps=4, persistent=True)
CPU = torch.device("cpu")


def number(value: int) -> torch.Tensor:
    return torch.tensor([value], dtype=torch.int32)


def normed(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + EPS)


@pytest.fixture(params=[(256, 96, 64, 200), (130, 80, 32, 77), (64, 16, 192, 64)], ids=str)
def case(request: pytest.FixtureRequest) -> tuple[torch.Tensor, int, int]:
    """Activations, columns of the product, and how many rows count. Neither is a multiple of the tile."""
    torch.manual_seed(1)
    num_rows, columns, depth, counted = request.param
    return torch.randn(num_rows, depth), columns, counted


def test_a_scaled_product_is_the_product_of_normed_rows(case: tuple[torch.Tensor, int, int]) -> None:
    x, columns, counted = case
    weight, out = torch.randn(columns, x.shape[1]), torch.full((len(x), columns), torch.nan)
    squares = torch.stack([x.square().sum(1) * share for share in (0.25, 0.75)])
    products.Product(products.SCALED, x, weight, out, squares, number(counted), TILE, parts=2, eps=EPS).launch()
    torch.testing.assert_close(out[:counted], (normed(x) @ weight.T)[:counted], rtol=1e-5, atol=1e-4)


def test_a_gated_product_is_swiglu(case: tuple[torch.Tensor, int, int]) -> None:
    x, columns, counted = case
    weight, out = torch.randn(2 * columns, x.shape[1]), torch.full((len(x), columns), torch.nan)
    squares = x.square().sum(1)[None]
    products.Product(products.GATED, x, weight, out, squares, number(counted), TILE, eps=EPS).launch()
    gate, up = apart(normed(x) @ weight.T)
    torch.testing.assert_close(out[:counted], (functional.silu(gate) * up)[:counted], rtol=1e-4, atol=1e-3)


def test_an_added_product_leaves_sums_of_squares(case: tuple[torch.Tensor, int, int]) -> None:
    x, columns, counted = case
    weight, before = torch.randn(columns, x.shape[1]), torch.randn(len(x), columns)
    out, squares = before.clone(), torch.full((3, len(x)), torch.nan)
    product = products.Product(products.ADDED, x, weight, out, squares, number(counted), TILE)
    product.launch()
    expected = before + x @ weight.T
    torch.testing.assert_close(out[:counted], expected[:counted], rtol=1e-5, atol=1e-4)
    sums = squares[: product.parts].sum(0)
    torch.testing.assert_close(sums[:counted], expected.square().sum(1)[:counted], rtol=1e-4, atol=1e-3)


def test_a_plain_product(case: tuple[torch.Tensor, int, int]) -> None:
    x, columns, counted = case
    weight, out = torch.randn(columns, x.shape[1]), torch.full((len(x), columns), torch.nan)
    products.Product(products.PLAIN, x, weight, out, torch.empty(1, len(x)), number(counted), TILE).launch()
    torch.testing.assert_close(out[:counted], (x @ weight.T)[:counted], rtol=1e-5, atol=1e-4)


def test_a_tile_with_more_parts_than_room_is_refused() -> None:
    x, weight, out = torch.randn(64, 32), torch.randn(192, 32), torch.zeros(64, 192)
    with pytest.raises(ValueError, match="room for 2 parts, the tile makes 3"):
        products.Product(products.ADDED, x, weight, out, torch.zeros(2, 64), number(64), TILE)


@pytest.mark.parametrize(("heads", "kv_heads", "head_dim"), [(4, 2, 16), (4, 2, 64), (2, 2, 32), (4, 1, 128)])
@pytest.mark.parametrize("keys_ready", [False, True])
def test_attention_with_norm_and_rotation(heads: int, kv_heads: int, head_dim: int, keys_ready: bool) -> None:
    """Sequences shorter and longer than a block of queries and of keys, an empty one between them, a tail behind."""
    torch.manual_seed(2)
    lengths = [5, 70, 0, 66, 1]
    packing = Packing.of(lengths, CPU)
    num_rows = packing.num_rows
    qkv = torch.randn(num_rows + 30, (heads + 2 * kv_heads) * head_dim)
    q_norm, k_norm = torch.rand(head_dim) + 0.5, torch.rand(head_dim) + 0.5
    angles = torch.arange(200.0)[:, None] * 1e4 ** -(torch.arange(0, head_dim, 2.0) / head_dim)
    cos, sin = angles.cos(), angles.sin()
    block = attention.queries_per_item(heads, kv_heads)
    starts = packing.cu_seqlens.tolist()
    items = [
        (start, length, offset)
        for start, length in zip(starts, lengths, strict=False)
        for offset in range(0, length, block)
    ]
    table = torch.full((len(items) + 3, 3), 10**6, dtype=torch.int32)  # what the kernel must not look at
    table[: len(items)] = torch.tensor(items, dtype=torch.int32)
    out = torch.full((len(qkv), heads * head_dim), torch.nan)
    given = qkv.clone()
    if keys_ready:
        position = packing.positions.to(torch.int32)
        keys = qkv[:, heads * head_dim :][:, : kv_heads * head_dim]
        attention.prepare_heads(keys, position, number(num_rows), k_norm, cos, sin, EPS)
    attention.attend(
        qkv, out, table, number(len(items)), len(table), q_norm, k_norm, cos, sin, EPS, heads, kv_heads,
        keys_ready=keys_ready,
    )  # fmt: skip

    rotation = cos[packing.positions][:, None], sin[packing.positions][:, None]
    x = given[:num_rows].view(num_rows, -1, head_dim)
    query, key, value = torch.split(x, [heads, kv_heads, kv_heads], dim=1)
    query = _rotate(normed(query) * q_norm, *rotation)
    key = _rotate(normed(key) * k_norm, *rotation)
    expected = SdpaAttention()(query, key, value, packing).flatten(1)
    torch.testing.assert_close(out[:num_rows], expected, rtol=1e-4, atol=1e-4)
    assert out[num_rows:].isnan().all()


def test_heads_are_normed_rotated_and_scaled_in_place() -> None:
    """Some columns of wider rows, and no rows beyond those that count."""
    torch.manual_seed(6)
    rows, heads, head_dim, num_rows = 5, 3, 32, 4
    wide = torch.randn(rows, 5 * head_dim)
    before, norm = wide.clone(), torch.rand(head_dim) + 0.5
    position = torch.tensor([0, 3, 1, 2, 9], dtype=torch.int32)
    angles = torch.arange(4.0)[:, None] * 1e4 ** -(torch.arange(0, head_dim, 2.0) / head_dim)
    columns = slice(head_dim, (1 + heads) * head_dim)
    attention.prepare_heads(wide[:, columns], position, number(num_rows), norm, angles.cos(), angles.sin(), EPS, 0.25)
    expected = before.clone()
    given = before[:num_rows, columns].view(num_rows, heads, head_dim)
    at = position[:num_rows].long()
    turned = _rotate(normed(given) * norm, angles.cos()[at][:, None], angles.sin()[at][:, None])
    expected[:num_rows, columns] = 0.25 * turned.flatten(1)
    torch.testing.assert_close(wide, expected, rtol=1e-5, atol=1e-5)


def test_embedding_takes_text_voice_and_targets() -> None:
    torch.manual_seed(3)
    text, audio = torch.randn(50, 48), torch.randn(8 * 11, 48)
    codes = torch.randint(0, 11, (4, 8), dtype=torch.int32)
    ids = torch.randint(0, 11, (6, 8), dtype=torch.int32)
    ids[:2, 1] = -1  # two rows of text
    ids[:2, 0] = torch.tensor([49, 0])
    row_target = torch.tensor([-1, -1, -1, 2, 0, 7], dtype=torch.int32)
    hidden, squares = torch.full((6, 48), torch.nan), torch.full((3, 6), torch.nan)
    rows.embed(row_target, ids, codes, text, audio, hidden, squares, number(5), parts=3)

    def spoken(row: torch.Tensor) -> torch.Tensor:
        return audio[row.long() + 11 * torch.arange(8)].sum(0)

    expected = torch.stack([text[49], text[0], spoken(ids[2]), spoken(codes[2]), spoken(codes[0])])
    torch.testing.assert_close(hidden[:5], expected)
    torch.testing.assert_close(squares[:, :5].sum(0), expected.square().sum(1))
    assert hidden[5].isnan().all()


def test_guiding_rows_guides_logits() -> None:
    torch.manual_seed(4)
    hidden, heads = torch.randn(9, 48), torch.randn(20, 48)
    squares = hidden.square().sum(1)[None] * torch.tensor([[0.5], [0.5]])
    cond, uncond = torch.tensor([3, 5, 8], dtype=torch.int32), torch.tensor([0, -1, 1], dtype=torch.int32)
    guidance = torch.tensor([2.0, 0.0])
    out = torch.full((4, 48), torch.nan)
    rows.guide(
        hidden, squares, cond, uncond, torch.tensor([0, 1, 0], dtype=torch.int32), guidance, out,
        number(9), number(3), parts=2, eps=EPS,
    )  # fmt: skip
    logits = normed(hidden) @ heads.T
    expected = torch.stack([3 * logits[3] - 2 * logits[0], logits[5], 3 * logits[8] - 2 * logits[1]])
    torch.testing.assert_close(out[:3] @ heads.T, expected, rtol=1e-4, atol=1e-4)
    assert out[3].isnan().all()


@pytest.mark.parametrize("temperatures", [(0.0, 0.0), (5.0, 0.0), (0.0, 1.3), (5.0, 0.7)], ids=str)
def test_scores_and_tokens(temperatures: tuple[float, float]) -> None:
    """Three requests with parameters of their own in one launch; words are Philox's, so noise agrees too."""
    torch.manual_seed(5)
    frames, vocab = [3, 5, 2], 1025
    position_temperature = torch.tensor([temperatures[0], 0.0, 2.0])
    class_temperature = torch.tensor([temperatures[1], 0.0, 0.5])
    penalty = torch.tensor([5.0, 0.0, 1.5])
    seeds, chunks, steps = [2**64 - 3, 7, 2**40 + 11], [0, 3, 1], [0, 31, 4]
    num_targets = sum(frames)
    logits = torch.randn(num_targets, 8, vocab) * 3
    codes = torch.full((num_targets, 8), vocab - 1, dtype=torch.int32)
    codes[torch.rand(num_targets, 8) < 0.3] = 17
    segment = torch.arange(3).repeat_interleave(torch.tensor(frames))
    frame = torch.cat([torch.arange(n) for n in frames])
    keys = torch.tensor([split_seed(seed) for seed in seeds])
    int32 = torch.int32
    signed = torch.where(keys >= 2**31, keys - 2**32, keys).to(int32)
    scores, tokens = torch.zeros(num_targets, 8), torch.zeros(num_targets, 8, dtype=int32)
    unmask.score_cells(
        logits.flatten(1), codes, segment.to(int32), frame.to(int32), torch.tensor(chunks, dtype=int32),
        torch.tensor(steps, dtype=int32), signed, penalty, position_temperature, class_temperature, scores, tokens,
        number(num_targets), vocab - 1,
    )  # fmt: skip

    params = RowParams(
        segment, frame, torch.tensor(chunks)[segment], keys[segment, 0], keys[segment, 1],
        torch.zeros(num_targets), penalty[segment], position_temperature[segment], class_temperature[segment],
    )  # fmt: skip
    log_probs = token_log_probs(logits, vocab - 1)
    confidence, best = log_probs.max(dim=-1)
    step = torch.tensor(steps)[segment]
    expected_tokens = draw_tokens(log_probs, best, params, step)
    expected = position_scores(confidence, params, step)
    masked = codes == vocab - 1
    torch.testing.assert_close(scores[masked], expected[masked], rtol=1e-4, atol=1e-4)
    assert torch.equal(tokens[masked].long(), expected_tokens[masked])
    assert scores[~masked].isneginf().all()


def test_a_cell_whose_scores_are_not_finite_stays_masked() -> None:
    logits = torch.randn(2, 8 * 1025)
    logits[0, 5] = torch.nan
    logits[1, 1025 + 9] = torch.inf
    codes = torch.full((2, 8), 1024, dtype=torch.int32)
    zero, one = torch.zeros(2), torch.zeros(2, dtype=torch.int32)
    scores, tokens = torch.zeros(2, 8), torch.zeros(2, 8, dtype=torch.int32)
    unmask.score_cells(
        logits, codes, one, one, one, one, torch.zeros(2, 2, dtype=torch.int32), zero, zero, zero, scores, tokens,
        number(2), 1024,
    )  # fmt: skip
    assert scores[0, 0].isneginf()
    assert scores[1, 1].isneginf()
    assert int(scores.isneginf().sum()) == 2
    counts = torch.tensor([[16, 0]], dtype=torch.int32)
    unmask.pick_cells(scores, tokens, codes, number(0), number(2), counts, torch.zeros(1, dtype=torch.int32), number(1))
    assert codes.flatten().tolist().count(1024) == 2
    assert (codes[0, 0], codes[1, 1]) == (1024, 1024)


def test_picks_are_those_of_two_stable_sorts() -> None:
    """Ties, negative zero, taken cells, a request over a thousand cells, one whose steps are over, one not counted."""
    torch.manual_seed(6)
    frames = [40, 300, 3, 5, 9]
    first = [sum(frames[:index]) for index in range(len(frames))]
    segment = torch.arange(len(frames)).repeat_interleave(torch.tensor(frames))
    num_targets = sum(frames)
    scores = (torch.randn(num_targets, 8) * 4).round() / 4 - 2
    scores[torch.rand(num_targets, 8) < 0.2] = -torch.inf
    scores[0, :2] = torch.tensor([0.0, -0.0])
    counts = torch.tensor([[9, 31, 0], [9, 777, 0], [9, 1, 0], [9, 0, 0], [9, 5, 0]], dtype=torch.int32)
    steps = torch.ones(5, dtype=torch.int32)
    tokens = torch.randint(0, 1024, (num_targets, 8), dtype=torch.int32)
    codes = torch.full((num_targets, 8), 1024, dtype=torch.int32)
    int32 = torch.int32
    unmask.pick_cells(
        scores, tokens, codes, torch.tensor(first, dtype=int32), torch.tensor(frames, dtype=int32), counts, steps,
        number(4),
    )  # fmt: skip
    assert steps.tolist() == [2, 2, 2, 2, 1]
    wanted = counts[:, 1].clone().long()
    wanted[4] = 0
    # torch sorts 0.0 and -0.0 as equals, the kernel puts -0.0 behind: no score of the engine is -0.0 at a tie.
    scores[0, 1] = -1e-30
    expected = pick_cells(scores, segment, wanted) & ~scores.isneginf()
    assert torch.equal(codes != 1024, expected)
    assert torch.equal(codes[expected], tokens[expected])


@pytest.mark.parametrize("shape", [(2, 3, 1500), (1, 5, 7)])
def test_snake_and_its_gradients_are_torch_s(shape: tuple[int, int, int]) -> None:
    torch.manual_seed(1)
    x, alpha, given = 3 * torch.randn(shape), 0.3 + torch.rand(1, shape[1], 1), torch.randn(shape)
    exact = [tensor.double().requires_grad_() for tensor in (x, alpha)]
    wanted = exact[0] + (exact[1] + EPSILON).reciprocal() * torch.sin(exact[1] * exact[0]).pow(2)
    wanted.backward(given.double())
    network = torch.nn.Sequential(Snake1d(shape[1]))
    network[0].alpha.data.copy_(alpha)
    fuse_snakes(network)
    x.requires_grad_()
    found = network(x)
    found.backward(given)
    for ours, theirs in ((found, wanted), (x.grad, exact[0].grad), (network[0].alpha.grad, exact[1].grad)):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-4)
