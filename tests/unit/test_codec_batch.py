"""Decoding in batches: a row is what it is alone, the passes are full, and the kernel does what its twin does.

Run as a script, under TRITON_INTERPRET=1, this file compares the kernel alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from threading import Event, Thread

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omnivoice.model.codec import Codec
from omnivoice.model.codec.codec import ON_CPU
from omnivoice.model.codec.decoder import EMPTY, DecoderOptions, WaveformDecoder, snake_masked_torch
from omnivoice.model.codec.passes import MAX_PASS_FRAMES, bucket, plan_passes

TESTS = Path(__file__).parents[1]
GOLDEN = TESTS / "golden" / "checkpoint"
DEMO = TESTS.parent / "checkpoints" / "demo"
LENGTHS = [7, 1, 30, 12, 2, 41, 1, 1]
LIMITS = {torch.float64: 1e-10, torch.float32: 1e-5}


def packed(folder: Path, dtype: torch.dtype = torch.float32) -> Codec:
    """A codec that decodes in packed passes, as one on a GPU does."""
    return Codec(Codec.from_folder(folder, dtype=dtype).network, DecoderOptions())


@pytest.fixture(scope="module")
def exact() -> Codec:
    """The golden checkpoint's random weights amplify rounding a thousandfold: only float64 is far from the limit."""
    return packed(GOLDEN, torch.float64)


@pytest.fixture(scope="module", params=["golden, float64", "demo, float32"])
def codec(request: pytest.FixtureRequest, exact: Codec) -> Codec:
    return exact if "float64" in request.param else packed(DEMO)


def random_rows(lengths: list[int], seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randint(0, 1024, (length, 8), generator=generator) for length in lengths]


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    assert found.shape == wanted.shape
    assert found.dtype == wanted.dtype
    return float((found - wanted).norm() / wanted.norm())


def by_the_layers(codec: Codec, row: torch.Tensor) -> torch.Tensor:
    """transformers' decoder, one row at a time."""
    with torch.inference_mode():
        return codec.network.decode(row.T[None])[0]


@pytest.mark.parametrize(
    "options",
    [DecoderOptions(), DecoderOptions(max_pass_frames=45), DecoderOptions(channels_last=True), ON_CPU],
    ids=["one pass", "several passes", "channels last", "as on a CPU"],
)
def test_rows_of_a_pass_are_what_they_are_alone(codec: Codec, options: DecoderOptions) -> None:
    decoder = WaveformDecoder(codec.network, options)
    rows = random_rows(LENGTHS)
    for row, found in zip(rows, decoder.decode(rows), strict=True):
        assert relative_error(found, by_the_layers(codec, row)) <= LIMITS[codec.dtype]
        assert relative_error(found, decoder.decode([row])[0]) <= LIMITS[codec.dtype]


def test_a_narrower_gap_would_not_do(exact: Codec) -> None:
    """The gap is as wide as the widest window needs, and no wider: with one frame less, neighbours are heard."""
    decoder = WaveformDecoder(exact.network)
    first, second = random_rows([20, 20])
    wanted = by_the_layers(exact, first)
    for gap, is_enough in ((decoder.gap, True), (decoder.gap - 1, False)):
        codes = torch.cat([first, torch.full((gap, 8), EMPTY), second])
        with torch.inference_mode():
            found = decoder.decode_frames(codes[None])[0, : len(wanted)]
        assert (relative_error(found, wanted) <= 1e-10) is is_enough


def test_rows_padded_to_one_length_are_what_they_are_alone(exact: Codec) -> None:
    decoder = WaveformDecoder(exact.network)
    rows = random_rows([5, 12, 9])
    codes = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=EMPTY)
    with torch.inference_mode():
        waveforms = decoder.decode_frames(codes)
    for row, found in zip(rows, waveforms, strict=True):
        assert relative_error(found[: len(row) * 960], by_the_layers(exact, row)) <= 1e-10


def test_decode_batch_gives_what_decode_gives(codec: Codec) -> None:
    codes = [row.T.numpy() for row in random_rows(LENGTHS)]
    for row, found in zip(codes, codec.decode_batch(codes), strict=True):
        wanted = codec.decode(row)
        assert found.dtype == np.float32
        assert found.shape == (row.shape[1] * 960,)
        assert np.linalg.norm(found - wanted) <= LIMITS[torch.float32] * np.linalg.norm(wanted)


def test_an_empty_batch_is_empty(exact: Codec) -> None:
    assert exact.decode_batch([]) == []
    assert exact.decode_tensors([]) == []
    assert exact.encode_batch([]) == []


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_tensors_of_both_widths_are_decoded(exact: Codec, dtype: torch.dtype) -> None:
    rows = random_rows([6, 3])
    wanted = exact.decode_batch([row.T.numpy() for row in rows])
    for found, expected in zip(exact.decode_tensors([row.to(dtype) for row in rows]), wanted, strict=True):
        assert found.dtype == torch.float32
        np.testing.assert_array_equal(found.numpy(), expected)


def test_what_is_decoded_is_left_as_it_was(exact: Codec) -> None:
    rows = random_rows([6, 3])
    copies = [row.clone() for row in rows]
    exact.decode_tensors(rows)
    assert all(map(torch.equal, rows, copies))


def test_one_bad_row_is_named_before_anything_is_decoded(exact: Codec) -> None:
    with pytest.raises(ValueError, match="not 1024"):
        exact.decode_batch([np.zeros((8, 3), np.int64), np.full((8, 2), 1024)])


def test_clips_encoded_in_a_batch_have_the_codes_they_have_alone(codec: Codec) -> None:
    generator = np.random.default_rng(0)
    clips = [(0.1 * generator.standard_normal(frames * 960)).astype(np.float32) for frames in (25, 3, 25, 1)]
    for found, clip in zip(codec.encode_batch(clips), clips, strict=True):
        assert found.dtype == np.int64
        np.testing.assert_array_equal(found, codec.encode(clip))


def test_decoding_waits_for_no_lock() -> None:
    """Whoever encodes holds the lock; decoding goes on beside it."""
    codec = packed(GOLDEN)
    done = Event()
    with codec._lock:
        thread = Thread(target=lambda: (codec.decode(np.zeros((8, 2), np.int64)), done.set()), daemon=True)
        thread.start()
        assert done.wait(60)
    thread.join()


@given(
    st.lists(st.integers(1, 400), max_size=60),
    st.integers(0, 8),
    st.sampled_from([1, 100, 500, MAX_PASS_FRAMES]),
)
def test_passes_hold_every_row_apart_and_within_the_bound(lengths: list[int], gap: int, max_frames: int) -> None:
    passes = plan_passes(lengths, gap, max_frames)
    assert [row for one in passes for row in range(one.first, one.first + len(one.starts))] == list(range(len(lengths)))
    for one in passes:
        members = lengths[one.first : one.first + len(one.starts)]
        ends = [start + length for start, length in zip(one.starts, members, strict=True)]
        assert one.starts[0] == 0
        assert list(one.starts[1:]) == [end + gap for end in ends[:-1]]
        assert one.num_frames == ends[-1]
        assert one.num_frames <= max_frames or len(members) == 1


@given(st.lists(st.integers(25, 400), min_size=2, max_size=60))
def test_passes_are_few(lengths: list[int]) -> None:
    """No more than passes that are all full to within a row would be."""
    passes = plan_passes(lengths, 4, MAX_PASS_FRAMES)
    whole = sum(lengths) + 4 * len(lengths)
    assert len(passes) <= -(-whole // (MAX_PASS_FRAMES - max(lengths) - 4))


@given(st.integers(1, 10_000))
def test_buckets_are_few_and_not_much_larger(frames: int) -> None:
    size = bucket(frames)
    assert frames <= size <= max(frames * 9 / 8, frames + 15)
    assert size % 16 == 0
    assert bucket(size) == size


def test_the_longest_pass_is_a_bucket() -> None:
    assert bucket(MAX_PASS_FRAMES) == MAX_PASS_FRAMES
    assert len({bucket(frames) for frames in range(1, MAX_PASS_FRAMES + 1)}) <= 48


def test_kernel_agrees_with_torch_in_the_interpreter() -> None:
    """In a process of its own: whether Triton interprets or compiles is settled when it is imported."""
    pytest.importorskip("triton")
    ended = subprocess.run(
        [sys.executable, __file__],
        env={**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(TESTS.parent)},
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout == "16 cases, 2 decoders\n"


def test_the_codec_needs_no_triton() -> None:
    script = (
        "import sys\n"
        "from omnivoice.model.codec import Codec\n"
        f"Codec.from_folder({str(GOLDEN)!r}).network\n"
        "assert not [name for name in sys.modules if name.startswith('omnivoice.kernels')]\n"
    )
    subprocess.run([sys.executable, "-c", script], cwd=TESTS.parent, timeout=120, check=True)


def compare_kernel() -> int:
    """Every mode and layout, at a size that fills no block evenly; padding holds what must not spread."""
    from omnivoice.kernels.snake import snake_masked

    generator = torch.Generator().manual_seed(0)
    batch, channels, frames = 2, 3, 41
    modes = list(product((1, 40), (False, True), (False, True), (torch.contiguous_format, torch.channels_last)))
    for factor, has_residual, keeps_sum, layout in modes:
        shape = (batch, channels, 1, frames * factor)
        x, residual = (3 * torch.randn(shape, generator=generator) for _ in range(2))
        bias, alpha = torch.randn(2, channels, generator=generator)
        valid = torch.rand(batch, frames, generator=generator) < 0.7
        padding = ~valid.repeat_interleave(factor, dim=1)[:, None, None].expand(shape)
        x[padding] = torch.inf
        arguments = (bias, residual if has_residual else None, alpha, 1 / (alpha + 1e-9), valid, keeps_sum)

        def run(
            kernel: Callable[..., tuple[torch.Tensor | None, torch.Tensor]],
            x: torch.Tensor = x,
            arguments: tuple[object, ...] = arguments,
            layout: torch.memory_format = layout,
        ) -> tuple[torch.Tensor | None, torch.Tensor]:
            lay = [
                argument.clone(memory_format=layout)
                if isinstance(argument, torch.Tensor) and argument.dim() == 4
                else argument
                for argument in (x, *arguments)
            ]
            return kernel(*lay)

        total, active = run(snake_masked)
        wanted_total, wanted = run(snake_masked_torch)
        assert (total is None) is not keeps_sum
        if total is not None:
            torch.testing.assert_close(total[~padding], wanted_total[~padding], rtol=0, atol=0)
        torch.testing.assert_close(active, wanted, rtol=1e-5, atol=1e-5)
        assert not active[padding].any()
    return len(modes)


def compare_decoders() -> int:
    """A whole decode with the kernel in the twin's place, in both layouts."""
    from omnivoice.kernels.snake import snake_masked

    codec = packed(GOLDEN)
    rows = random_rows([3, 1, 4])
    for channels_last in (False, True):
        decoder = WaveformDecoder(codec.network, DecoderOptions(channels_last=channels_last))
        wanted = decoder.decode(rows)
        decoder._snake = snake_masked
        for found, expected in zip(decoder.decode(rows), wanted, strict=True):
            # These weights amplify float32's rounding to almost 1e-4; a wrong mask or residual is off by about 1.
            assert relative_error(found, expected) <= 5e-4
    return 2


if __name__ == "__main__":
    print(f"{compare_kernel()} cases, {compare_decoders()} decoders")
