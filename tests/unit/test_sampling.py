"""The pure functions of a step, against the simplest code that could do the same."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from omnivoice.philox import CLASS_STREAM, POSITION_STREAM, gumbel, philox, split_seed, uniform
from omnivoice.sampling import RowParams, draw_tokens, guide, pick_cells, position_scores, token_log_probs

# Known answers of philox4x32-10 published with Random123 (counter, key, words).
KNOWN_ANSWERS = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


def python_philox(counter: tuple[int, ...], key: tuple[int, int]) -> tuple[int, ...]:
    """The published algorithm in plain integers."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (p1 >> 32) ^ c1 ^ k0, p1 & 0xFFFFFFFF, (p0 >> 32) ^ c3 ^ k1, p0 & 0xFFFFFFFF
        k0, k1 = (k0 + 0x9E3779B9) & 0xFFFFFFFF, (k1 + 0xBB67AE85) & 0xFFFFFFFF
    return c0, c1, c2, c3


@pytest.mark.parametrize(("counter", "key", "words"), KNOWN_ANSWERS)
def test_philox_known_answers(counter: tuple[int, ...], key: tuple[int, int], words: tuple[int, ...]) -> None:
    found = philox(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))
    assert tuple(int(word) for word in found) == words


word32 = st.integers(0, 2**32 - 1)


@given(st.tuples(word32, word32, word32, word32), st.integers(0, 2**64 - 1))
def test_philox_equals_plain_integers(counter: tuple[int, ...], seed: int) -> None:
    key = split_seed(seed)
    found = philox(tuple(map(torch.tensor, counter)), tuple(map(torch.tensor, key)))
    assert tuple(int(word) for word in found) == python_philox(counter, key)


def row_params(segments: list[int], **columns: float) -> RowParams:
    segment = torch.tensor(segments)
    frame = torch.cat([torch.arange(segments.count(s)) for s in sorted(set(segments))])

    def column(name: str, default: float, dtype: torch.dtype = torch.float64) -> torch.Tensor:
        return torch.full((len(segments),), columns.get(name, default), dtype=dtype)

    return RowParams(
        segment=segment,
        frame=frame,
        chunk=column("chunk", 0, torch.int64),
        key_low=column("key_low", 7, torch.int64),
        key_high=column("key_high", 9, torch.int64),
        guidance_scale=column("guidance_scale", 2.0),
        layer_penalty_factor=column("layer_penalty_factor", 5.0),
        position_temperature=column("position_temperature", 5.0),
        class_temperature=column("class_temperature", 0.0),
    )


def test_guidance_is_the_inner_softmaxes_form() -> None:
    """log_softmax(c + g(c − u)) of the branches' own log-probabilities, mask excluded, as the model defines it."""
    generator = torch.Generator().manual_seed(1)
    cond, uncond = torch.randn(2, 3, 8, 1025, generator=generator, dtype=torch.float64)
    scale = torch.tensor([0.0, 2.0, 3.5], dtype=torch.float64)
    found = token_log_probs(guide(cond, uncond, scale), 1024)
    c, u = cond.log_softmax(-1), uncond.log_softmax(-1)
    expected = torch.log_softmax(c + scale[:, None, None] * (c - u), dim=-1)
    torch.testing.assert_close(found[..., :1024], expected[..., :1024])
    assert torch.isneginf(found[..., 1024]).all()


def test_guidance_may_come_before_a_linear_head() -> None:
    generator = torch.Generator().manual_seed(1)
    cond, uncond = torch.randn(2, 3, 16, generator=generator, dtype=torch.float64)
    head = torch.randn(16, 1025, generator=generator, dtype=torch.float64)
    scale = torch.tensor([0.0, 2.0, 3.5], dtype=torch.float64)
    torch.testing.assert_close(guide(cond, uncond, scale) @ head, guide(cond @ head, uncond @ head, scale))


def test_position_noise_is_the_documented_counter() -> None:
    """Cell (frame 1, codebook 3) of chunk 2 at step 5 takes word 0 of counter (1, 3·2^16, 5, 2·2 + 0)."""
    rows = row_params([0, 0], chunk=2, position_temperature=4.0)
    scores = position_scores(torch.full((2, 8), -1.0, dtype=torch.float64), rows, torch.tensor([5, 5]))
    word = python_philox((1, 3 << 16, 5, 2 << 1 | POSITION_STREAM), (7, 9))[0]
    noise = gumbel(uniform(torch.tensor(word), torch.float64))
    torch.testing.assert_close(scores[1, 3], (-1.0 - 5.0 * 3) / 4.0 + noise)


def test_zero_position_temperature_adds_no_noise() -> None:
    rows = row_params([0], position_temperature=0.0, layer_penalty_factor=2.0)
    scores = position_scores(torch.full((1, 8), -1.0, dtype=torch.float64), rows, torch.tensor([0]))
    torch.testing.assert_close(scores[0], -1.0 - 2.0 * torch.arange(8, dtype=torch.float64))


def test_class_noise_draws_among_the_103_likeliest_by_the_documented_counter() -> None:
    generator = torch.Generator().manual_seed(2)
    log_probs = torch.randn(4, 8, 1025, generator=generator, dtype=torch.float64).log_softmax(-1)
    log_probs[..., 1024] = -torch.inf
    rows = row_params([0] * 4, class_temperature=0.7, chunk=1)
    step = torch.full((4,), 6)
    drawn = draw_tokens(log_probs, log_probs.argmax(-1), rows, step)
    for frame in range(4):
        for codebook in range(8):
            likeliest = log_probs[frame, codebook].topk(103).indices.tolist()
            noisy = {}
            for token in likeliest:
                words = python_philox((frame, codebook << 16 | token >> 2, 6, 1 << 1 | CLASS_STREAM), (7, 9))
                noise = gumbel(uniform(torch.tensor(words[token & 3]), torch.float64))
                noisy[token] = float(log_probs[frame, codebook, token]) / 0.7 + float(noise)
            assert int(drawn[frame, codebook]) == max(noisy, key=noisy.__getitem__)


def test_class_noise_belongs_to_the_codebook_wherever_the_cut_begins() -> None:
    log_probs = torch.randn(3, 8, 1025, generator=torch.Generator().manual_seed(4)).log_softmax(-1)
    rows, step, best = row_params([0, 0, 0], class_temperature=0.7), torch.full((3,), 2), log_probs.argmax(-1)
    whole = draw_tokens(log_probs, best, rows, step)
    cut = [draw_tokens(log_probs[:, [c]], best[:, [c]], rows, step, first_codebook=c) for c in range(8)]
    assert torch.equal(torch.cat(cut, dim=1), whole)
    assert not torch.equal(whole, best)


def test_class_temperature_zero_keeps_the_likeliest_beside_rows_that_draw() -> None:
    log_probs = torch.randn(2, 8, 1025, generator=torch.Generator().manual_seed(3)).log_softmax(-1)
    rows = row_params([0, 1])
    rows.class_temperature[1] = 2.0
    best = log_probs.argmax(-1)
    drawn = draw_tokens(log_probs, best, rows, torch.tensor([0, 0]))
    assert torch.equal(drawn[0], best[0])
    assert not torch.equal(drawn[1], best[1])


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    seed=st.integers(0, 2**32 - 1),
    data=st.data(),
)
def test_pick_cells_takes_each_segments_best(lengths: list[int], seed: int, data: st.DataObject) -> None:
    """Against a loop over segments; coarse scores make ties, which go to the earlier cell."""
    counts = [data.draw(st.integers(0, 8 * length)) for length in lengths]
    scores = torch.randint(0, 6, (sum(lengths), 8), generator=torch.Generator().manual_seed(seed)).double()
    segment = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
    chosen = pick_cells(scores, segment, torch.tensor(counts))
    start = 0
    for length, count in zip(lengths, counts, strict=True):
        cells = scores[start : start + length].flatten().tolist()
        best = sorted(range(len(cells)), key=lambda index: (-cells[index], index))[:count]
        found = chosen[start : start + length].flatten().nonzero()[:, 0].tolist()
        assert found == sorted(best)
        start += length
