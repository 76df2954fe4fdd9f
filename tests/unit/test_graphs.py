"""The ladder of buckets and which of them are kept: no device needed, launches are run one by one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omnivoice.chunk_run import IS_TEXT, ChunkRun
from omnivoice.graph.graphs import Graphs, ladder
from omnivoice.graph.tables import Capacity, HostTables
from omnivoice.parameters import SamplingParams


@given(st.integers(1, 100_000))
def test_a_ladder_ends_at_the_largest_batch_and_wastes_little(largest: int) -> None:
    rungs = ladder(largest)
    assert rungs[-1] == largest
    assert list(rungs) == sorted(set(rungs))
    for below, above in pairwise(rungs):
        assert above - below <= max(128, min(256, below // 2))


def graphs(buckets: tuple[int, ...], max_graphs: int) -> tuple[Graphs, list[int], list[int]]:
    built: list[int] = []
    replayed: list[int] = []

    def build(bucket: int) -> list:  # type: ignore[type-arg]
        built.append(bucket)
        return [lambda: replayed.append(bucket)]

    sizes = torch.zeros(4, dtype=torch.int32)
    return Graphs(build, buckets, sizes, may_capture=lambda: False, max_graphs=max_graphs), built, replayed


def test_the_graphs_used_last_are_kept() -> None:
    """A hit counts as use: what is met again and again stays, though it was made first."""
    made, built, _ = graphs((10, 20, 30, 40), max_graphs=2)
    for rows in (5, 15, 9, 25, 10, 35, 1):
        made.prepare(rows)
    assert built == [10, 20, 30, 40]
    assert [bucket in made for bucket in (10, 20, 30, 40)] == [True, False, False, True]
    made.prepare(11)
    assert built[-1] == 20


def test_a_replay_is_one_run_of_the_smallest_bucket_that_holds_it() -> None:
    made, _, replayed = graphs((10, 20), max_graphs=2)
    for rows in (10, 11, 20, 1):
        made.prepare(rows)
        made.replay(rows)
    assert replayed == [10, 20, 20, 10]
    with pytest.raises(ValueError, match="21 rows are over the largest bucket, 20"):
        made.prepare(21)


def test_tables_lay_out_a_batch() -> None:
    """Two requests, written out by hand: a voice, no guidance, a run that comes from another batch."""
    voice = np.arange(16).reshape(8, 2)
    first = ChunkRun("a", 3, [7, 8], voice, 3, SamplingParams(num_step=2, guidance_scale=1.5), seed=2**63 + 5, step=1)
    second = ChunkRun("b", 0, [9], None, 2, SamplingParams(num_step=4, guidance_scale=0.0), seed=1)
    host = HostTables(Capacity(64, 4))
    assert host.fill([first, second], {id(first): 40}, queries=8) == 5
    table = {name: host.tables[name].tolist() for name in ("sizes", "items", "row_target", "position", "source")}
    assert table["sizes"] == [13, 5, 3, 2]
    assert table["items"][:3] == [[0, 7, 0], [7, 3, 0], [10, 3, 0]]
    assert table["row_target"][:13] == [-1, -1, -1, -1, 0, 1, 2, 0, 1, 2, -1, 3, 4]
    assert table["position"][:13] == [0, 1, 2, 3, 4, 5, 6, 0, 1, 2, 0, 1, 2]
    assert table["source"][:5] == [40, 41, 42, -1, -1]
    assert host.tables["cond_row"].tolist()[:5] == [4, 5, 6, 11, 12]
    assert host.tables["uncond_row"].tolist()[:5] == [7, 8, 9, -1, -1]
    assert host.tables["target_request"].tolist()[:5] == [0, 0, 0, 1, 1]
    assert host.tables["target_frame"].tolist()[:5] == [0, 1, 2, 0, 1]
    assert host.tables["row_ids"][0].tolist() == [7] + [IS_TEXT] * 7
    assert host.tables["row_ids"][2].tolist() == [0, 2, 4, 6, 8, 10, 12, 14]
    assert host.tables["key"][0].tolist() == [5, -(2**31)]
    assert host.tables["chunk"].tolist()[:2] == [3, 0]
    assert host.tables["step"].tolist()[:2] == [1, 0]
    assert host.tables["counts"][0, :3].tolist() == [*first.schedule, 0]
    assert host.tables.params(0).tolist()[:2] == [1.5, 0.0]


def test_a_long_sequence_is_several_items() -> None:
    long = ChunkRun("a", 0, [1], None, 20, SamplingParams(), seed=1)
    host = HostTables(Capacity(64, 1))
    host.fill([long], {}, queries=8)
    assert host.tables["items"].tolist()[:6] == [
        [0, 21, 0],
        [0, 21, 8],
        [0, 21, 16],
        [21, 20, 0],
        [21, 20, 8],
        [21, 20, 16],
    ]
    assert Capacity(64, 1).items(41, 8) >= 6
