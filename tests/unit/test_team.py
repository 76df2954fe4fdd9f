"""Two threads do the halves of a step: together, with one of torch's threads each, and not one without the other."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import golden_cases as golden
import numpy as np
import pytest
import torch

from omnivoice import Engine, EngineConfig, SamplingParams, SynthesisRequest
from omnivoice.executor import EagerExecutor
from omnivoice.team import Team

Meet = Callable[[], None]


@pytest.fixture
def torch_threads() -> Iterator[Callable[[int], None]]:
    before = torch.get_num_threads()
    yield torch.set_num_threads
    torch.set_num_threads(before)


@pytest.mark.parametrize("size", [1, 2])
def test_parts_see_what_the_others_wrote_before_they_met(size: int) -> None:
    team = Team(size)
    rounds = 200
    written = [[0] * size for _ in range(rounds)]
    seen: list[list[list[int]]] = [[] for _ in range(size)]

    def work(part: int, meet: Meet) -> None:
        for index in range(rounds):
            written[index][part] = index + 1
            meet()
            seen[part].append(list(written[index]))

    team.run(work)
    assert seen == [[[index + 1] * size for index in range(rounds)]] * size


@pytest.mark.parametrize("failing", [0, 1])
def test_an_error_of_one_part_ends_both_and_the_team_goes_on(failing: int) -> None:
    team = Team(2)
    went_on = []

    def work(part: int, meet: Meet) -> None:
        meet()
        if part == failing:
            raise ValueError(f"part {part}")
        meet()
        went_on.append(part)

    for _ in range(2):
        with pytest.raises(ValueError, match=f"part {failing}"):
            team.run(work)
    assert went_on == []
    threads: set[str] = set()
    team.run(lambda part, meet: threads.add(threading.current_thread().name))
    assert len(threads) == 2


def test_each_uses_one_of_torchs_threads_while_the_team_is_led(torch_threads: Callable[[int], None]) -> None:
    torch_threads(2)
    team = Team.of_threads(2)
    used = {}

    def work(part: int, meet: Meet) -> None:
        used[part] = torch.get_num_threads()

    with team.led():
        team.run(work)
    assert used == {0: 1, 1: 1}
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize(("threads", "size"), [(1, 1), (2, 2), (3, 1)])
def test_an_executor_has_two_threads_where_torch_has(
    threads: int, size: int, torch_threads: Callable[[int], None]
) -> None:
    torch_threads(threads)
    engine = Engine.from_checkpoint(golden.CHECKPOINT, EngineConfig(device="cpu", dtype="float32"))
    executor = engine._executor
    assert isinstance(executor, EagerExecutor)
    assert executor.backbone.team.size == size


def test_codes_do_not_depend_on_the_number_of_threads(torch_threads: Callable[[int], None]) -> None:
    """With guidance and without, drawn classes among them: embedding, layers, heads and noise all take part."""
    requests = [
        SynthesisRequest(
            text,
            "en",
            duration=0.6,
            seed=seed,
            params=SamplingParams(num_step=6, guidance_scale=guidance, class_temperature=temperature),
        )
        for seed, (text, guidance, temperature) in enumerate(
            [("Good morning to you.", 2.0, 0.0), ("Hi", 0.0, 0.0), ("Wait [laughter] really?", 3.0, 0.8)]
        )
    ]
    codes = []
    for threads in (1, 2):
        torch_threads(threads)
        engine = Engine.from_checkpoint(golden.CHECKPOINT, EngineConfig(device="cpu", dtype="float64"))
        codes.append([result.codes for result in engine.generate_codes(requests)])
    for alone, halves in zip(*codes, strict=True):
        np.testing.assert_array_equal(alone, halves)
