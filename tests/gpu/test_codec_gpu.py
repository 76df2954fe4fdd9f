"""The codec on a CUDA device: the kernel against its twin, batches against rows alone, and who may use TF32."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from threading import Event

import numpy as np
import pytest
import torch

from bench.codec import by_the_layers, mixed_lengths, random_rows, relative_error, write_published_codec
from omnivoice.model.codec import Codec
from omnivoice.model.codec.decoder import DecoderOptions, WaveformDecoder, snake_masked_torch

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

DEVICE = torch.device("cuda")
EXACT_LIMIT = 1e-5
TF32_LIMIT = 2e-3


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published-codec")
    write_published_codec(folder)
    return folder


@pytest.fixture(scope="module")
def codec(published: Path) -> Iterator[Codec]:
    yield Codec.from_folder(published, DEVICE)
    torch.cuda.empty_cache()


@pytest.fixture(scope="module")
def rows() -> list[torch.Tensor]:
    return random_rows([1, 104, 25, 2, 375, 60, 104], DEVICE)


def clips(count: int, frames: int = 50) -> list[np.ndarray]:
    generator = np.random.default_rng(0)
    return [(0.1 * generator.standard_normal((frames + index) * 960)).astype(np.float32) for index in range(count)]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["NCW", "NWC"])
@pytest.mark.parametrize(("factor", "channels", "frames"), [(1, 512, 37), (8, 512, 64), (40, 5, 33), (960, 32, 300)])
def test_kernel_equals_its_twin(layout: torch.memory_format, factor: int, channels: int, frames: int) -> None:
    """The largest has more blocks than a CUDA grid's second axis; the widest sine has an argument of some hundreds."""
    from omnivoice.kernels.snake import snake_masked

    generator = torch.Generator(device="cuda").manual_seed(factor)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=DEVICE)

    for batch, has_residual, keeps_sum in product((1, 3), (False, True), (False, True)):
        shape = (batch, channels, 1, frames * factor)
        x, residual = (30 * random(*shape).contiguous(memory_format=layout) for _ in range(2))
        bias, alpha = random(channels), 1 + 4 * random(channels).abs()
        valid = random(batch, frames) < 0.5
        empty = ~valid.repeat_interleave(factor, dim=1)[:, None, None].expand(shape)
        x[empty] = torch.inf
        vectors = (alpha, 1 / (alpha + 1e-9), valid, keeps_sum)
        exact_vectors = (alpha.double(), 1 / (alpha.double() + 1e-9), valid, keeps_sum)
        wanted_total, wanted = snake_masked_torch(
            x.double(), bias.double(), residual.double() if has_residual else None, *exact_vectors
        )
        total, active = snake_masked(x, bias, residual if has_residual else None, *vectors)
        torch.testing.assert_close(active.double(), wanted, rtol=1e-4, atol=2e-4)
        assert not active[empty].any()
        assert (total is None) is not keeps_sum
        if total is not None:
            torch.testing.assert_close(total[~empty].double(), wanted_total[~empty], rtol=1e-6, atol=1e-5)


@pytest.mark.parametrize("channels_last", [False, True], ids=["NCW", "NWC"])
@pytest.mark.parametrize("fused", [False, True], ids=["torch", "fused"])
@pytest.mark.parametrize("max_frames", [2048, 200])
def test_rows_of_a_pass_are_what_they_are_alone(
    codec: Codec, rows: list[torch.Tensor], channels_last: bool, fused: bool, max_frames: int
) -> None:
    options = DecoderOptions(channels_last=channels_last, fused=fused, max_pass_frames=max_frames)
    decoder = WaveformDecoder(codec.network, options)
    found = decoder.decode(rows)
    assert relative_error(found, by_the_layers(codec, rows, allow_tf32=False)) <= EXACT_LIMIT
    assert relative_error(found, [decoder.decode([row])[0] for row in rows]) <= EXACT_LIMIT


def test_a_device_decodes_what_the_cpu_does(codec: Codec, published: Path, rows: list[torch.Tensor]) -> None:
    exact = Codec.from_folder(published, "cpu", torch.float64)
    few = [row.cpu() for row in rows[2:4]]
    found = [waveform.cpu() for waveform in codec.decode_tensors(rows[2:4])]
    assert relative_error(found, by_the_layers(exact, few, allow_tf32=False)) <= EXACT_LIMIT


def test_fast_decode_is_off_by_what_tf32_explains(published: Path, codec: Codec, rows: list[torch.Tensor]) -> None:
    fast = Codec.from_folder(published, DEVICE, fast_decode=True)
    error = relative_error(fast.decode_tensors(rows), by_the_layers(codec, rows, allow_tf32=False))
    assert EXACT_LIMIT < error <= TF32_LIMIT


def test_mixed_lengths_through_numpy(codec: Codec) -> None:
    rows = random_rows(mixed_lengths(12), DEVICE)
    found = codec.decode_batch([row.T.cpu().numpy() for row in rows])
    assert [waveform.shape for waveform in found] == [(len(row) * 960,) for row in rows]
    wanted = [waveform.cpu() for waveform in by_the_layers(codec, rows, allow_tf32=False)]
    assert relative_error([torch.from_numpy(waveform) for waveform in found], wanted) <= EXACT_LIMIT


@pytest.mark.filterwarnings("ignore:Synchronization debug mode")
@pytest.mark.parametrize("fused", [False, True], ids=["torch", "fused"])
def test_decoding_never_waits_for_the_device(codec: Codec, rows: list[torch.Tensor], fused: bool) -> None:
    decoder = WaveformDecoder(codec.network, DecoderOptions(fused=fused))
    decoder.decode(rows)
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        decoder.decode(rows)
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_decoding_runs_on_the_current_stream(codec: Codec, rows: list[torch.Tensor]) -> None:
    """Behind work that keeps another stream busy: decoded on that stream, codes that it is yet to write are seen."""
    wanted = codec.decode_tensors(rows)
    late = [torch.zeros_like(row) for row in rows]
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(1_000_000_000)
        for row, source in zip(late, rows, strict=True):
            row.copy_(source)
        found = codec.decode_tensors(late)
    assert not stream.query()
    stream.synchronize()
    assert relative_error(found, wanted) <= EXACT_LIMIT


def test_encoding_stays_exact_while_others_decode_in_tf32(
    published: Path, codec: Codec, rows: list[torch.Tensor]
) -> None:
    """The flag that the encoder needs off is the process's, and the decoders beside it want the opposite."""
    fast = Codec.from_folder(published, DEVICE, fast_decode=True)
    waveforms = clips(4)
    wanted = [codec.encode(waveform) for waveform in waveforms]
    exact, rounded = codec.decode_tensors(rows), fast.decode_tensors(rows)
    torch.cuda.synchronize()
    stop = Event()

    def decode(which: Codec) -> list[list[torch.Tensor]]:
        found = [which.decode_tensors(rows)]
        while not stop.is_set():
            found = [found[0], which.decode_tensors(rows)]
            torch.cuda.synchronize()
        return found

    with ThreadPoolExecutor(4) as pool:
        decoding = [pool.submit(decode, which) for which in (codec, fast)]
        encoding = [pool.submit(fast.encode_batch, waveforms * 3) for _ in range(2)]
        try:
            encoded = [future.result(300) for future in encoding]
        finally:
            stop.set()
        decoded = [future.result(300) for future in decoding]
    for codes in encoded:
        for found, expected in zip(codes, wanted * 3, strict=True):
            np.testing.assert_array_equal(found, expected)
    for batches, expected in zip(decoded, (exact, rounded), strict=True):
        assert max(relative_error(found, expected) for found in batches) <= EXACT_LIMIT
    assert relative_error(rounded, exact) > EXACT_LIMIT
    assert torch.backends.cudnn.allow_tf32


def test_clips_encoded_in_a_batch_have_the_codes_they_have_alone(codec: Codec) -> None:
    waveforms = clips(5)
    for found, waveform in zip(codec.encode_batch(waveforms), waveforms, strict=True):
        np.testing.assert_array_equal(found, codec.encode(waveform))


def test_memory_of_a_pass_is_bounded(codec: Codec) -> None:
    """A pass of 2048 frames stays near 1 GB, and more rows need more passes, not more memory than what they return."""
    row = torch.zeros((2048, 8), dtype=torch.int32, device=DEVICE)
    decoder = WaveformDecoder(codec.network)

    def peak(rows: list[torch.Tensor]) -> int:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        decoder.decode(rows)
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before

    one, four = peak([row]), peak([row] * 4)
    assert one < 2 * 2**30
    assert four < one + 4 * 2048 * 960 * 4 + 2**23
