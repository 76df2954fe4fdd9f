"""The benchmark's own arithmetic: summaries, tables, arrivals, texts, and the pipe to a peer's process."""

from __future__ import annotations

import itertools
import json
import statistics
import sys
from pathlib import Path
from types import ModuleType

import pytest

from bench.arrivals import Arrivals, Clients, poisson_times
from bench.engine import measure, parse
from bench.floors import products_of_layer
from bench.peers.ours import RowCounter, make_work, requests_of
from bench.peers.process import PeerFailed, PeerSpec, unpack_wheels
from bench.peers.protocol import Work
from bench.peers.standins import add_package, empty_modules
from bench.plot import Block, Summary, markdown, percentile, tables
from bench.random_checkpoint import SMALL_CHECKPOINT
from bench.serving import Trace
from bench.texts import SENTENCES, mixed_texts, texts_of
from omnivoice.model.config import ModelConfig
from omnivoice.planning import plan


def a_block(batch: int, **times_ms: list[float]) -> Block:
    block = Block(batch, 4.1, 102, False, 230 * batch, 4.08 * batch)
    block.times_ms = {name.replace("_", " "): times for name, times in times_ms.items()}
    return block


def test_summary_and_percentiles_by_nearest_rank() -> None:
    assert Summary.of([3.0, 1.0, 2.0, 9.0]) == (2.5, 1.0, 9.0, 4)
    samples = list(range(1, 101))
    assert [percentile(samples, percent) for percent in (50, 95, 99, 100)] == [50, 95, 99, 100]
    assert percentile([7.0], 99) == 7.0
    with pytest.raises(ValueError, match="no samples"):
        percentile([], 50)


def test_tables_compare_the_engine_with_peers_and_floors() -> None:
    blocks = [a_block(batch, engine_bf16=[40.0 * batch], floor_bf16=[30.0 * batch], peer=[80.0]) for batch in (1, 2, 4)]
    blocks[2].times_ms.pop("peer")
    blocks[2].notes["peer"] = "out of memory"
    lines = tables(blocks).splitlines()
    assert lines[0] == "| 4.1 s each, no voice | B=1 | B=2 | B=4 |"
    assert "| peer, ms | 80.0 (once) | 80.0 (once) | failed |" in lines
    assert "| engine bf16: share of floor bf16 | 75 % | 75 % | 75 % |" in lines
    assert "| engine bf16: faster than peer | 2.00 × | 1.00 × | – |" in lines
    assert "| engine bf16, audio-s/s | 102.0 | 102.0 | 102.0 |" in lines
    assert lines[-1] == "- peer at B=4, 4.1 s: out of memory"
    with pytest.raises(ValueError, match="1 cells under 2 headings"):
        markdown(["a", "b"], [["1"]])


class Scripted:
    """A contender that takes the seconds it is told, and fails when they are used up."""

    def __init__(self, name: str, seconds: list[float], log: list[str]) -> None:
        self.name = name
        self._seconds = iter(seconds)
        self._log = log
        self.untimed: list[int] = []

    def run(self, work: Work, untimed: int = 0) -> float:
        self._log.append(self.name)
        self.untimed.append(untimed)
        try:
            return next(self._seconds)
        except StopIteration:
            raise PeerFailed("used up") from None


def test_contenders_take_turns_and_a_slow_or_broken_one_does_not_stop_the_others() -> None:
    log: list[str] = []
    quick = Scripted("quick", [9.0, 0.1, 0.2, 0.3, 0.4], log)
    slow = Scripted("slow", [8.0, 7.0], log)
    broken = Scripted("broken", [1.0, 1.0], log)
    block = a_block(1)
    measure([quick, slow, broken], make_work(1, 4.1, has_voice=False), block, repeats=4, max_pass=6.0)
    assert log == ["quick", "slow", "broken", "quick", "slow", "broken", "broken", "quick", "quick", "quick"]
    assert block.times_ms["quick"] == pytest.approx([100, 200, 300, 400])
    assert block.times_ms["slow"] == pytest.approx([7000])  # slower than the limit: once
    assert block.notes == {"broken": "used up"}
    assert block.first_ms["quick"] == pytest.approx(9000)
    assert quick.untimed == [0, 0, 1, 1, 0]  # short passes come after an untimed one


def test_every_contender_is_asked_for_the_same_frames() -> None:
    for seconds, has_voice in itertools.product((1.0, 4.1, 15.0), (False, True)):
        work = make_work(3, seconds, has_voice)
        assert work.frames == int(seconds * 25)
        for request in requests_of(work):
            assert [chunk.frames for chunk in plan(request).chunks] == [work.frames]
        rows = RowCounter(SMALL_CHECKPOINT)(work)
        assert rows > 3 * (2 * work.frames + (150 if has_voice else 0))
        assert work == Work.from_message({**_read(work.to_line()), "untimed": 1})


def test_work_may_leave_the_length_to_the_package_and_name_voices() -> None:
    work = Work(["Hello."], None, instructs=["female"])
    assert Work.from_message(_read(work.to_line())) == work
    assert work.duration is None
    with pytest.raises(ValueError, match="the package chooses the length"):
        _ = work.audio_seconds


def _read(line: str) -> dict[str, object]:
    message: dict[str, object] = json.loads(line)
    return message


def test_texts_have_the_lengths_that_they_are_asked_for() -> None:
    assert len(set(SENTENCES)) == 16
    assert all(65 <= len(text) <= 75 and text.isascii() and not any(map(str.isdigit, text)) for text in SENTENCES)
    assert texts_of(4.1, 18)[16:] == list(SENTENCES[:2])
    longest = max(len(word) for text in SENTENCES for word in text.split())
    for seconds in (1.0, 8.0, 15.0):
        assert all(17 * seconds - longest - 1 <= len(text) <= 17 * seconds for text in texts_of(seconds, 16))
    first, again = ([*itertools.islice(mixed_texts(seed=5), 200)] for _ in range(2))
    assert first == again
    assert min(map(len, first)) < 40
    assert max(map(len, first)) > 150


def test_poisson_arrivals_are_seeded_and_have_the_rate_and_spread() -> None:
    times = poisson_times(rate=20.0, end=500.0, seed=1)
    assert times == sorted(poisson_times(20.0, 500.0, seed=1))
    assert times != poisson_times(20.0, 500.0, seed=2)
    assert max(times) < 500.0
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert statistics.fmean(gaps) == pytest.approx(1 / 20, rel=0.05)
    assert statistics.stdev(gaps) == pytest.approx(1 / 20, rel=0.05)  # exponential: as wide as its mean


def test_a_closed_loop_sends_again_after_each_result_until_its_end() -> None:
    arrivals = Arrivals.closed_loop(clients=2, end=1.0)
    assert arrivals.due(0.0) == [0.0, 0.0]
    assert arrivals.are_over
    arrivals.on_result(0.4)
    assert not arrivals.are_over
    assert arrivals.due(0.3) == []
    assert arrivals.due(0.5) == [0.4]
    arrivals.on_result(1.0)
    assert arrivals.are_over


def test_clients_send_again_after_each_result_until_all_are_sent() -> None:
    clients = Clients(2, total=3)
    assert clients.due(0.0) == [0.0, 0.0]
    clients.on_result(0.5)
    assert not clients.are_over
    assert clients.due(0.5) == [0.5]
    clients.on_result(0.6)
    assert clients.are_over


def test_figures_of_a_trace_leave_out_the_warm_up() -> None:
    trace = Trace("request", "1 clients")
    for arrived in (0.0, 1.0, 2.0, 3.0):
        trace.arrived.append(arrived)
        trace.ended.append(arrived + (9.0 if arrived == 0.0 else 0.5))
        trace.audio_seconds.append(4.0)
        trace.batches.append(1)
    figures = trace.figures(warm_up=1.0)
    assert figures["requests"] == 3
    assert figures["p99_ms"] == 500.0
    assert figures["audio_s_per_s"] == 4.0  # two ended between 1.0 and the last arrival, at 3.0
    assert trace.figures(warm_up=10.0)["requests"] == 0


def test_products_of_a_layer_hold_all_its_matrices() -> None:
    config = ModelConfig.from_folder(SMALL_CHECKPOINT)
    shapes = config.tensor_shapes()
    layer = [shape for name, shape in shapes.items() if ".layers.0." in name and len(shape) == 2]
    weights = sum(rows * columns for rows, columns in layer)
    assert sum(product.inner * product.outer for product in products_of_layer(config)) == weights


def test_quick_and_unknown_modes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick = parse(["--out", str(tmp_path / "x.json"), "--quick", "--modes", "bf16,fp8"])
    assert (quick.batches, quick.seconds, quick.voices, quick.modes) == ([1, 8, 32], [], [False], ["bf16", "fp8"])
    with pytest.raises(SystemExit):
        parse(["--out", "x.json", "--modes", "int3"])
    assert "int3 is not one of" in capsys.readouterr().err


def test_a_missing_wheel_is_named(tmp_path: Path) -> None:
    spec = PeerSpec("peer", "peer", "float16", ("peer-1.0",), ("extra-2.0",))
    with pytest.raises(PeerFailed, match=r"no wheel peer-1\.0-\*\.whl"):
        unpack_wheels(spec, tmp_path, tmp_path / "scratch")


def test_stand_ins_can_be_imported_and_do_not_run_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "__init__.py").write_text("raise RuntimeError('heavy')")
    (tmp_path / "light.py").write_text("from stand_in_missing.part import Thing\nthing = Thing")
    names = ("stand_in_missing", "stand_in_missing.part", "stand_in_package", "stand_in_package.light")
    for name in names:
        monkeypatch.setitem(sys.modules, name, ModuleType(name))  # so that they are gone afterwards
        del sys.modules[name]
    empty_modules("stand_in_missing", "stand_in_missing.part")
    add_package("stand_in_package", tmp_path)
    from stand_in_package import light  # type: ignore[import-not-found]

    assert light.thing.__name__ == "Thing"
