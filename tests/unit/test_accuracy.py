"""Comparing modes: shares, word errors and their spread by hand, and one step from a partial state on a real engine."""

from __future__ import annotations

import argparse
import math

import numpy as np
import pytest

from bench.accuracy import (
    BATCHES,
    MODES,
    ModeFailed,
    forced_tokens,
    in_batches,
    modes_in,
    options_of,
    settings_of,
    states_of,
    together,
)
from bench.accuracy_texts import (
    MASK,
    SENTENCES,
    State,
    Utterance,
    agreement,
    error_table,
    forced_agreement,
    percent,
    rate_and_error,
    tables,
    utterances_of,
    word_errors,
    words,
)
from bench.random_checkpoint import SMALL_CHECKPOINT
from omnivoice import Engine, EngineConfig, VoicePrompt


def test_options_are_the_fields_that_the_config_has() -> None:
    assert options_of("eager-float32", ["dtype"]) == {"dtype": "float32"}  # no graphs at all: as good as off
    assert options_of("eager-float32", ["dtype", "graphs"]) == {"dtype": "float32", "graphs": False}
    with pytest.raises(ModeFailed, match="no field deterministic"):
        options_of("deterministic", ["dtype", "graphs"])
    assert modes_in("fp8,float32,fp8") == ["fp8", "float32"]
    with pytest.raises(argparse.ArgumentTypeError, match="int3: not one of"):
        modes_in("int3,float32")


def test_batches_hold_everything_once_in_an_order_of_their_own() -> None:
    items = list(range(80))
    for size in BATCHES:
        batches = in_batches(items, size, seed=size)
        flat = [item for batch in batches for item in batch]
        assert sorted(flat) == items != flat
        assert [len(batch) for batch in batches] == [min(size, 80 - first) for first in range(0, 80, size)]
        assert batches == in_batches(items, size, seed=size)


def test_agreement_counts_codes_codebooks_and_whole_requests() -> None:
    wanted = {"a": np.zeros((8, 3), dtype=np.int64), "b": np.zeros((8, 1), dtype=np.int64)}
    found = {name: codes.copy() for name, codes in wanted.items()}
    assert agreement(found, wanted) == {"codes": 1.0, "by_codebook": [1.0] * 8, "requests": 1.0}
    found["a"][2, :2] = 7
    found["a"][5, 0] = 7
    shares = agreement(found, wanted)
    assert shares["codes"] == pytest.approx(1 - 3 / 32)
    assert shares["by_codebook"] == [1.0, 1.0, 0.5, 1.0, 1.0, 0.75, 1.0, 1.0]
    assert shares["requests"] == 0.5


def test_forced_agreement_looks_at_masked_cells_and_at_those_unmasked_next() -> None:
    one = Utterance("00", "Hello there.", 0)
    before, after = np.full((2, 8), MASK), np.full((2, 8), MASK)
    before[0, :4] = after[0, :4] = 1  # 12 cells are masked, of which the next step unmasks two
    after[1, :2] = 1
    tokens = np.ones((2, 8), dtype=np.int64)
    other = tokens.copy()
    other[1, 0] = other[1, 7] = 2
    other[0, 0] = 2  # not masked: not counted
    shares = forced_agreement([other, tokens], [tokens, tokens], [State(one, 4, before, after)] * 2)
    assert shares == {"masked": {"4": pytest.approx(22 / 24)}, "unmasked next": {"4": 0.75}}
    shares = forced_agreement([other], [tokens], [State(one, 4, before, before)])
    assert shares["unmasked next"] == {"4": None}


def test_only_what_is_all_equal_shows_as_100() -> None:
    shown = [percent(share) for share in (1.0, 0.999999, 0.5, None)]
    assert shown == ["100 %", "99.99 %", "50.00 %", "–"]


def test_tables_have_a_row_a_mode() -> None:
    share = {"codes": 0.5, "by_codebook": [0.25] * 8, "requests": 0.0}
    forced = {"masked": {"0": 0.75, "4": 1.0}, "unmasked next": {"0": 1.0, "4": None}}
    figures = {"alone": {"default": share, "greedy": share}, "batches": {"8": share}, "forced": forced}
    lines = tables("eager", {"eager": figures, "bfloat16": figures}).splitlines()
    assert "| mode | default: codes | default: requests | greedy: codes |" in lines[2]
    assert "| bfloat16 | 50.00 % | 0.00 % | 50.00 % | 0.00 % | 50.00 % | 0.00 % |" in lines
    assert "| bfloat16 | greedy |" + " 25.00 % |" * 8 in lines
    assert "| bfloat16 | unmasked next | 100 % | – |" in lines


def test_word_errors_by_hand() -> None:
    assert words("Don’t stop, at 5 O'Clock!") == ["don't", "stop", "at", "5", "o'clock"]
    assert word_errors("The door is open.", "the door is open") == 0
    assert word_errors("The door is open.", "A door open now") == 3
    assert word_errors("Good morning.", "") == 2


def test_the_error_of_a_rate_is_over_sentences() -> None:
    rate, error = rate_and_error([0, 2, 0, 2], [10, 10, 10, 10])
    assert rate == 0.1
    # With equal lengths it is the standard error of the mean: four values of 0 and 0.2, deviation 0.2 / sqrt(3).
    assert error == pytest.approx(0.2 / math.sqrt(3) / 2)
    assert rate_and_error([1, 2], [5, 10]) == (pytest.approx(0.2), pytest.approx(0.0))


def test_the_error_table_compares_sentence_by_sentence() -> None:
    lengths = {"00": 4, "01": 6, "00-voice": 4, "01-voice": 6}
    eager, fast = dict.fromkeys(lengths, 1), {"00": 1, "01": 1, "00-voice": 1, "01-voice": 3}
    lines = error_table("eager", {"eager": eager, "fast": fast}, lengths).splitlines()
    assert lines[0] == "| words wrong, of 20 | no voice | voice | all | more than eager |"
    assert lines[2].startswith("| eager | 20.0 ±")
    assert lines[2].endswith("| +0.0 ± 0.0 % |")
    assert [cell.split(" ±")[0] for cell in lines[3].split(" | ")[1:]] == ["20.0", "40.0", "30.0", "+10.0"]


def test_sentences_can_be_heard_in_one_way_only() -> None:
    assert len(set(SENTENCES)) == len(SENTENCES) == 40
    lengths = [len(words(text)) for text in SENTENCES]
    assert (min(lengths), max(lengths)) == (2, 12)
    assert not any(character.isdigit() or character in "'’" for text in SENTENCES for character in text)
    voice = VoicePrompt(np.zeros((8, 5), dtype=np.int64), "Hello.")
    utterances = utterances_of(3, voice)
    assert [one.name for one in utterances] == ["00", "01", "02", "00-voice", "01-voice", "02-voice"]
    assert len({one.seed for one in utterances}) == 6


def test_one_step_from_a_partial_state_is_the_step_that_the_engine_takes() -> None:
    engine = Engine.from_checkpoint(SMALL_CHECKPOINT, EngineConfig(device="cpu", dtype="float64"))
    voice = VoicePrompt(np.random.default_rng(0).integers(0, 1024, (8, 9)), "Hello there.")
    utterances = [Utterance("00", "Good morning.", 5), Utterance("00-voice", "Nothing has changed.", 6, voice)]
    params = settings_of(num_step=4)["default"]
    states = states_of(engine, utterances, params)
    assert {(state.utterance.name, state.step) for state in states} == {
        (one.name, step) for one in utterances for step in range(4)
    }
    final = {state.utterance.name: state.after.T for state in states if state.step == 3}
    alone = {one.name: together(engine, [one], params)[one.name] for one in utterances}
    assert agreement(final, alone)["codes"] == 1.0  # the runs are those that the engine makes
    for state, tokens in zip(states, forced_tokens(engine, states, params), strict=True):
        assert tokens.max() < MASK
        assert np.array_equal(tokens[~state.masked], state.before[~state.masked])
        assert np.array_equal(tokens[state.unmasked_next], state.after[state.unmasked_next])


def test_every_mode_has_a_dtype_that_there_is() -> None:
    for options in MODES.values():
        config = EngineConfig(device="cpu", dtype=options["dtype"])
        assert str(config.resolved_dtype()) == f"torch.{options['dtype']}"
