"""Decoding beside the engine's thread: order, company, what fails alone, and what stops it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Barrier, Event, get_ident

import numpy as np
import pytest
import torch

from omnivoice.errors import GenerationFailed
from omnivoice.finisher import Finished, Finisher, Unmasked
from omnivoice.model.codec import Codec
from omnivoice.parameters import HOP_LENGTH, SamplingParams

DEMO = Path(__file__).parents[2] / "checkpoints" / "demo"
CPU = torch.device("cpu")
PLAIN = SamplingParams(postprocess_output=False, pad_duration=0.0, fade_duration=0.0)
SECONDS = 60.0


@pytest.fixture(scope="module")
def codec() -> Codec:
    return Codec.from_folder(DEMO)


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def chunk(frames: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 1024, (frames, 8), generator=torch.Generator().manual_seed(seed))


def finished(finisher: Finisher, count: int) -> list[Finished]:
    found: list[Finished] = []
    while len(found) < count:
        taken = finisher.take(SECONDS)
        assert taken, "nothing came"
        found += taken
    return found


def test_results_come_in_order_with_their_owners(codec: Codec) -> None:
    finisher = Finisher(codec, CPU)
    told = Event()
    finisher.notify(told.set)
    lengths = [3, 1, 7]
    finisher.submit([Unmasked(f"job {n}", [chunk(n, n)], PLAIN, None) for n in lengths])
    finisher.submit([Unmasked("codes", [chunk(4)], PLAIN, None, decodes=False)])
    assert told.wait(SECONDS)
    found = finished(finisher, 4)
    assert [item.owner for item in found] == ["job 3", "job 1", "job 7", "codes"]
    for item, frames in zip(found, lengths, strict=False):
        assert item.waveform is not None
        assert item.waveform.shape == (frames * HOP_LENGTH,)
        np.testing.assert_array_equal(item.codes[0], chunk(frames, frames).numpy().T)
    assert found[3].waveform is None
    assert finisher.take() == []


def test_each_decoded_chunk_is_told_before_the_result(codec: Codec) -> None:
    finisher = Finisher(codec, CPU)
    told: list[str] = []
    finisher.notify(lambda: told.append("result"), lambda: told.append("progress"))
    finisher.submit([Unmasked("long", [chunk(4, n) for n in range(3)], PLAIN, None)])
    finisher.submit([Unmasked("short", [chunk(2)], PLAIN, None)])
    finished(finisher, 2)
    assert told == ["progress"] * 3 + ["result", "progress", "result"] or told == ["progress"] * 4 + ["result"] * 2


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("is_alone", [True, False])
def test_a_second_thread_decodes_while_no_step_runs(
    codec: Codec, monkeypatch: pytest.MonkeyPatch, is_alone: bool
) -> None:
    decode = Codec.decode_tensors
    rows = [chunk(frames, frames) for frames in (9, 2, 5, 30)]
    one_by_one = []
    finisher = Finisher(codec, CPU)
    for row in rows:
        finisher.submit([Unmasked(None, [row], PLAIN, None)])
        one_by_one += finished(finisher, 1)
    both = Barrier(2)
    seen: set[int] = set()

    def meeting(self, codes, on_pass):  # type: ignore[no-untyped-def]
        if is_alone and get_ident() not in seen:
            both.wait(SECONDS)
        seen.add(get_ident())
        return decode(self, codes, on_pass)

    monkeypatch.setattr(Codec, "decode_tensors", meeting)
    finisher.is_alone = is_alone
    finisher.submit([Unmasked(n, [row], PLAIN, None) for n, row in enumerate(rows)])
    found = finished(finisher, len(rows))
    assert len(seen) == (2 if is_alone else 1)
    assert [item.owner for item in found] == list(range(len(rows)))
    for item, expected in zip(found, one_by_one, strict=True):
        np.testing.assert_array_equal(item.waveform, expected.waveform)


def test_a_request_with_a_masked_cell_fails_alone(codec: Codec) -> None:
    finisher = Finisher(codec, CPU)
    masked = chunk(5)
    masked[2, 3] = 1024
    finisher.submit([Unmasked("bad", [masked], PLAIN, None), Unmasked("good", [chunk(5)], PLAIN, None)])
    bad, good = finished(finisher, 2)
    assert isinstance(bad.error, GenerationFailed)
    assert good.error is None
    assert good.waveform is not None


def test_out_of_memory_is_retried_one_by_one(codec: Codec, monkeypatch: pytest.MonkeyPatch) -> None:
    """The device holds 8 frames at a time: two requests of 5 go one after the other, one of 9 fails."""
    decode = Codec.decode_tensors

    def small_device(self, codes, on_pass):  # type: ignore[no-untyped-def]
        if sum(len(row) for row in codes) > 8:
            raise torch.cuda.OutOfMemoryError("no memory")
        return decode(self, codes, on_pass)

    monkeypatch.setattr(Codec, "decode_tensors", small_device)
    finisher = Finisher(codec, CPU)
    finisher.submit([Unmasked(n, [chunk(n)], PLAIN, None) for n in (5, 9, 4)])
    five, nine, four = finished(finisher, 3)
    assert five.error is None
    assert four.error is None
    assert isinstance(nine.error, GenerationFailed)
    assert "out of memory" in str(nine.error)


def test_what_breaks_it_is_told_and_the_next_request_served(codec: Codec) -> None:
    finisher = Finisher(codec, CPU)
    finisher.submit([Unmasked("broken", [torch.zeros(3, 5, dtype=torch.int64)], PLAIN, None)])
    (broken,) = finished(finisher, 1)
    assert broken.owner == "broken"
    assert isinstance(broken.failure, RuntimeError | IndexError | ValueError)
    finisher.submit([Unmasked("next", [chunk(2)], PLAIN, None)])
    assert finished(finisher, 1)[0].owner == "next"
