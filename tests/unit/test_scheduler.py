"""Who runs next: turns between requests, budgets, and nobody for ever behind somebody else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from omnivoice.chunk_run import ChunkRun
from omnivoice.parameters import SamplingParams
from omnivoice.scheduler import Scheduler

PROMPT = [1, 2, 3]
PARAMS = SamplingParams(num_step=4)


def run(request_id: str, chunk: int = 0, frames: int = 10) -> ChunkRun:
    """A chunk of 2 · frames + 3 rows."""
    return ChunkRun(request_id, chunk, PROMPT, None, frames, PARAMS, seed=0)


def names(runs: list[ChunkRun]) -> list[str]:
    return [f"{item.request_id}{item.chunk}" for item in runs]


def test_requests_take_turns() -> None:
    """A long text that came first leaves room for the short ones behind it."""
    scheduler = Scheduler("step", max_chunks=4, max_tokens=10_000)
    scheduler.add(run("long", chunk) for chunk in range(6))
    scheduler.add([run("a")])
    scheduler.add([run("b")])
    scheduler.running = scheduler.admitted()
    assert names(scheduler.running) == ["long0", "a0", "b0", "long1"]
    scheduler.running = []
    assert names(scheduler.admitted()) == ["long2", "long3", "long4", "long5"]


def test_a_large_chunk_is_waited_for_and_not_overtaken() -> None:
    scheduler = Scheduler("step", max_chunks=8, max_tokens=100)
    scheduler.add([run("a"), run("b"), run("large", frames=40), run("c")])
    scheduler.running = scheduler.admitted()
    assert names(scheduler.running) == ["a0", "b0"]
    scheduler.running = [item for item in scheduler.running if item.request_id != "a"]
    assert names(scheduler.admitted()) == ["b0"]
    scheduler.running = []
    assert names(scheduler.admitted()) == ["large0"]


def test_a_chunk_over_the_whole_budget_runs_alone() -> None:
    scheduler = Scheduler("request", max_chunks=8, max_tokens=100)
    scheduler.add([run("huge", frames=500), run("a")])
    scheduler.running = scheduler.admitted()
    assert names(scheduler.running) == ["huge0"]
    assert names(scheduler.admitted()) == ["huge0"]


def test_what_a_split_hands_back_is_first_in_line() -> None:
    scheduler = Scheduler("request", max_chunks=4, max_tokens=10_000)
    scheduler.add(run(name) for name in "abcdef")
    scheduler.running = scheduler.admitted()
    scheduler.running = scheduler.halve()
    assert names(scheduler.running) == ["a0", "b0"]
    assert scheduler.max_tokens == 46
    scheduler.running = []
    assert names(scheduler.admitted()) == ["c0", "d0"]


def test_a_request_is_forgotten_wherever_it_is() -> None:
    scheduler = Scheduler("step", max_chunks=2, max_tokens=10_000)
    scheduler.add([run("a"), run("b"), run("a", 1), run("c")])
    scheduler.running = scheduler.admitted()
    scheduler.running = scheduler.forget("a")
    assert names(scheduler.running) == ["b0"]
    assert names(scheduler.admitted()) == ["b0", "c0"]


@given(
    st.lists(st.tuples(st.integers(1, 60), st.integers(1, 5)), min_size=1, max_size=12),
    st.integers(1, 6),
    st.integers(40, 300),
    st.sampled_from(["request", "step"]),
)
def test_everyone_runs_within_the_budgets(texts: list[tuple[int, int]], chunks: int, tokens: int, mode: str) -> None:
    """However long the others are: each chunk runs once, and within as many rounds as there are chunks before it."""
    scheduler = Scheduler(mode, chunks, tokens)  # type: ignore[arg-type]
    everyone = [run(str(i), chunk, frames) for i, (frames, count) in enumerate(texts) for chunk in range(count)]
    scheduler.add(everyone)
    ran: list[str] = []
    for _ in everyone:
        scheduler.running = scheduler.admitted()
        assert len(scheduler.running) <= chunks
        assert len(scheduler.running) <= 1 or sum(item.num_tokens for item in scheduler.running) <= tokens
        ran += names(scheduler.running)
        scheduler.running = []
    assert sorted(ran) == sorted(names(everyone))
