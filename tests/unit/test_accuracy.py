"""Comparing how the engine is run: texts, words heard, shares of codes, and rows on a real engine."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
import pytest

from bench.accuracy.agreement import MASK, State, agreement, forced_agreement, forced_tokens, states_of
from bench.accuracy.generate import generate, pieces_of, spoken
from bench.accuracy.kept import Folder
from bench.accuracy.listen import figures_of, listen, percent, table
from bench.accuracy.rows import BASELINE, CLIENTS, ENGINES, RATE, Row, chosen, in_turns, rows_of
from bench.accuracy.texts import DIGITS, JOINED, KINDS, LONG, MINUTE, NUMBERS, SENTENCES, SHORT, utterances
from bench.accuracy.words import Mean, numbers_right, rate_and_error, word_errors, words
from bench.random_checkpoint import SMALL_CHECKPOINT
from omnivoice import Engine, EngineConfig, SamplingParams
from omnivoice.planning import plan
from training.check import is_sentence
from training.recipe import VOICES
from training.text import Line

SEVERAL = SamplingParams(num_step=2)
DEMO = Path(__file__).parents[2] / "checkpoints" / "demo"


def test_sentences_are_held_out_and_can_be_heard_in_one_way() -> None:
    assert len(set(SENTENCES)) == len(SENTENCES) == 300
    for text in SENTENCES:
        line = Line(text, text)
        assert (line.is_held_out, is_sentence(line)) == (True, True), text
    assert not any(character.isdigit() for text in SENTENCES for character in text)


def test_digits_are_held_out_and_read_as_they_should_be_spoken() -> None:
    texts = utterances(NUMBERS)
    assert len(texts) == len(set(DIGITS)) == 50
    for one in texts:
        assert plan(one.request(SEVERAL)).text == one.spoken
        assert Line(one.text, one.spoken).is_held_out
        assert one.numbers
        assert all(written in one.text and said in one.spoken for written, said in one.numbers)
    written = [number for one in texts for number, _ in one.numbers]
    assert sum(number[0] in "$£€" for number in written) >= 10
    assert sum(":" in number for number in written) >= 10
    assert sum(number[0].isalpha() for number in written) >= 4
    assert max(
        int(number.replace(",", ""))
        for number in written
        if number[-1].isdigit() and number[0].isdigit() and ":" not in number
    ) in range(9_000, 10_000)


@pytest.mark.parametrize(
    ("kind", "number", "low", "high"), [(JOINED, 48, 10, 16), (MINUTE, 12, 36, 50), (LONG, 6, 170, 190)]
)
def test_longer_texts_have_the_length_of_their_kind(kind: str, number: int, low: float, high: float) -> None:
    texts = utterances(kind)
    plans = [plan(one.request(SEVERAL)) for one in texts]
    assert len({one.text for one in texts}) == number
    assert all(low <= made.seconds <= high for made in plans)
    assert all((len(made.chunks) > 1) == (kind != JOINED) for made in plans)


def test_voices_take_turns_and_fewer_sentences_make_fewer_texts_of_all_kinds() -> None:
    designs = [one.instruct for one in utterances(SHORT)[:6]]
    assert designs == 2 * [", ".join(items) for items in VOICES.values()]
    assert [len(utterances(kind, 30)) for kind in KINDS] == [30, 5, 2, 1, 5]
    names = [one.name for kind in KINDS for one in utterances(kind)]
    assert len(set(names)) == len(names) == 416


def test_agreement_counts_codes_codebooks_and_whole_utterances() -> None:
    wanted = {"a": [np.zeros((8, 1), np.int16), np.zeros((8, 2), np.int16)], "b": [np.zeros((8, 1), np.int16)]}
    found = {name: [piece.copy() for piece in pieces] for name, pieces in wanted.items()}
    assert agreement(found, wanted) == {"codes": 1.0, "by_codebook": [1.0] * 8, "utterances": 1.0}
    found["a"][1][2, :] = 7
    found["a"][0][5, 0] = 7
    shares = agreement(found, wanted)
    assert shares is not None
    assert shares["codes"] == pytest.approx(1 - 3 / 32)
    assert shares["by_codebook"] == [1.0, 1.0, 0.5, 1.0, 1.0, 0.75, 1.0, 1.0]
    assert shares["utterances"] == 0.5
    assert agreement({}, wanted) is None
    other = agreement({"b": [np.zeros((8, 2), np.int16)]}, wanted)
    assert other is not None
    assert other["codes"] == 0.0


def test_forced_agreement_looks_at_masked_cells_and_at_those_unmasked_next() -> None:
    one = utterances(SHORT)[0]
    before, after = np.full((2, 8), MASK), np.full((2, 8), MASK)
    before[0, :4] = after[0, :4] = 1  # 12 cells are masked, of which the next step unmasks two
    after[1, :2] = 1
    tokens = np.ones((2, 8), dtype=np.int64)
    other = tokens.copy()
    other[1, 0] = other[1, 7] = 2
    other[0, 0] = 2  # not masked: not counted
    shares = forced_agreement([other, tokens], [tokens, tokens], [State(one, 4, before, after)] * 2)
    half = pytest.approx(22 / 24)
    assert shares == {"masked": {"all": half, "4": half}, "unmasked next": {"all": 0.75, "4": 0.75}}
    shares = forced_agreement([other], [tokens], [State(one, 4, before, before)])
    assert shares["unmasked next"] == {"all": None, "4": None}


def test_word_errors_by_hand() -> None:
    assert words("Don’t stop, at 5 O'Clock p.m.!") == ["don't", "stop", "at", "5", "o'clock", "pm"]
    assert word_errors("The door is open.", "the door is open") == 0
    assert word_errors("The door is open.", "A door open now") == 3
    assert word_errors("Good morning.", "") == 2
    assert word_errors("It costs forty-three dollars.", "It costs $43.") == 0
    assert word_errors("Call Jack at eight oh four a.m.", "Call Jack at 8.04am", "Call Jack at 8:04 a.m.") == 0
    assert word_errors("Call Jack at eight oh four a.m.", "Call Jack at 8.40", "Call Jack at 8:04 a.m.") == 2


def test_numbers_are_right_in_digits_and_in_words_whatever_stands_beside_them() -> None:
    dates = (("Oct 3", "October third"), ("1,926", "one thousand nine hundred twenty-six"))
    assert numbers_right(dates, "On October 3rd there were 1926 of us.")
    assert numbers_right(dates, "on october third there where one thousand nine hundred twenty-six")
    assert not numbers_right(dates, "On October 3rd there were 1925 of us.")
    assert not numbers_right(dates, "There were 1926 of us.")
    times = [("7:43 p.m.", "seven forty-three p.m.")]
    for heard in ("Call me at 743 p.m.", "call me at 7:43 pm", "call me at seven forty-three p.m."):
        assert numbers_right(times, heard)
    for heard in ("Call me at 7.40 for p.m.", "Call me at 744 p.m.", "Call me at 1743 p.m.", "Call me at 743."):
        assert not numbers_right(times, heard)


def test_the_error_of_a_rate_is_over_sentences() -> None:
    rate, error = rate_and_error([0, 2, 0, 2], [10, 10, 10, 10])
    assert rate == 0.1
    # With equal lengths it is the standard error of the mean: four values of 0 and 0.2, deviation 0.2 / sqrt(3).
    assert error == pytest.approx(0.2 / math.sqrt(3) / 2)
    assert rate_and_error([1, 2], [5, 10]) == (pytest.approx(0.2), pytest.approx(0.0))


def test_the_bootstrap_has_the_width_of_the_mean_s_error() -> None:
    values = np.random.default_rng(1).normal(0.3, 0.2, 400).tolist()
    mean = Mean.of(values)
    assert mean == Mean.of(values)
    assert mean.mean == pytest.approx(np.mean(values))
    width = 2 * 1.96 * np.std(values) / 20
    assert mean.high - mean.low == pytest.approx(width, rel=0.05)
    assert Mean.of([0.25, 0.25]) == (0.25, 0.25, 0.25)
    assert Mean(0.05, -0.012, 0.11).shown("+") == "+5.0 [-1.2, +11.0] %"


def test_rows_are_there_for_every_device_and_share_engines() -> None:
    for device in ("cpu", "cuda"):
        rows = rows_of(device, 1.0, has_reference=True)
        assert rows[0] == Row(BASELINE)
        assert len({row.slug for row in rows}) == len(rows)
        assert [row for group in in_turns(rows) for row in group if row not in rows] == []
    names = [row.name for row in rows]
    assert "bfloat16 graph, 8 in flight, short" in names
    assert "bfloat16 graph, batches of 32, 12 steps, short" in names
    assert "bfloat16 graph, step mode, 1 a second, short" in names
    assert "deterministic, alone, short" in names
    some = chosen(rows, "fp8*,*digits")
    assert [row.slug for row in some] == [
        "float32-eager-batches-of-32-short",
        "float32-eager-batches-of-32-digits",
        "bfloat16-graph-batches-of-32-digits",
        "fp8-graph-batches-of-32-short",
    ]
    with pytest.raises(ValueError, match="int3: no such row; there are float32-eager"):
        chosen(rows, "int3,fp8*")
    for options in ENGINES.values():
        config = EngineConfig(device="cpu", dtype=options["dtype"])
        assert str(config.resolved_dtype()) == f"torch.{options['dtype']}"


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.from_checkpoint(SMALL_CHECKPOINT, EngineConfig(device="cpu", dtype="float64", mode="step"))


def test_one_step_from_a_partial_state_is_the_step_that_the_engine_takes(engine: Engine) -> None:
    texts, params = utterances(SHORT)[:2], SamplingParams(num_step=4)
    states = states_of(engine, texts, params)
    assert {(state.utterance.name, state.step) for state in states} == {
        (one.name, step) for one in texts for step in range(4)
    }
    final = {state.utterance.name: [state.after.T.astype(np.int16)] for state in states if state.step == 3}
    shares = agreement(final, spoken(engine, Row("", size=1), texts, params))
    assert shares is not None
    assert shares["codes"] == 1.0
    for state, tokens in zip(states, forced_tokens(engine, states, params), strict=True):
        assert tokens.max() < MASK
        assert np.array_equal(tokens[~state.masked], state.before[~state.masked])
        assert np.array_equal(tokens[state.unmasked_next], state.after[state.unmasked_next])


@pytest.mark.parametrize("row", [Row("", how=CLIENTS, size=2), Row("", how=RATE, size=50.0)])
def test_requests_that_come_one_by_one_get_the_codes_that_they_get_alone(engine: Engine, row: Row) -> None:
    texts = utterances(SHORT)[:5]
    alone = {one.name: pieces_of(one.text, *engine.generate_codes([one.request(SEVERAL)])) for one in texts}
    shares = agreement(spoken(engine, row, texts, SEVERAL), alone)
    assert shares is not None
    assert shares["utterances"] == 1.0


def test_generate_keeps_a_row_at_a_time_and_names_what_is_not_there(tmp_path: Path) -> None:
    arguments = argparse.Namespace(
        checkpoint=SMALL_CHECKPOINT, out=tmp_path, device="cpu", sentences=3, num_step=2, rate=50.0, rate_sentences=2
    )
    arguments.rows, arguments.reference = "*40-s,*in-flight*,fp8*,*second*", None
    generate(arguments)
    folder = Folder.at(tmp_path)
    assert set(folder.results["not_there"]) == {"fp8 graph"}
    rows = folder.results["rows"]
    assert {slug: row["agreement"]["codes"] for slug, row in rows.items()} == dict.fromkeys(rows, 1.0)
    assert len(rows) == 5
    (long,) = folder.codes("float32-eager-batches-of-32-40-s").values()
    assert len(long) > 1
    assert all(piece.shape[0] == 8 for piece in long)
    assert list(folder.codes("float32-eager-4-in-flight-short")) == ["short-000", "short-001", "short-002"]
    assert list(folder.codes("float32-eager-step-mode-50-a-second-short")) == ["short-000", "short-001"]
    assert folder.results["forced"]["float32 eager"]["masked"]["all"] == 1.0


def a_row(errors: dict[str, int], **figures: object) -> dict[str, object]:
    counts = {"errors": errors, "lengths": dict.fromkeys(errors, 4), "numbers_right": {}}
    shares = {"codes": 0.5, "utterances": 0.0}
    times = {"seconds": 2.0, "audio_seconds": 10.0, "paced": False}
    return {"kind": SHORT, "counts": counts, "agreement": shares, "own": None, **times, **figures}


def test_the_table_compares_with_the_baseline_text_by_text() -> None:
    texts = {name: {"instruct": voice} for name, voice in (("a", "female"), ("b", "male"), ("c", "female"))}
    about = {"device": "CPU", "torch": "2", "date": "today", "num_step": 8, "texts": texts, "not_there": {"fp8": "no"}}
    forced = {"slow": {"masked": {"all": 0.75}, "unmasked next": {"all": 1.0}}}
    slow = a_row({"a": 0, "b": 1, "c": 2}, name="slow, short", engine="slow")
    fast = a_row({"a": 1, "c": 3}, name="fast, short", engine="fast", paced=True)  # it has fewer texts
    slow["figures"] = figures_of(slow["counts"], None)  # type: ignore[arg-type]
    fast["figures"] = figures_of(fast["counts"], slow["counts"])  # type: ignore[arg-type]
    lines = table({**about, "forced": forced}, {"slow": slow, "fast": fast}).splitlines()
    assert lines[0].startswith("CPU, torch 2, today; 8 steps where a row names none")
    assert lines[4].startswith("| slow, short | 3 | 25.0 [0.0, 50.0] % | 25.0 % | 25.0 % | – | 50.00 % | 0.00 % | – |")
    assert lines[4].endswith("| 75.00 % | 100 % | 10 | 2.0 | 0.2000 |")
    assert "| fast, short | 2 | 50.0 [25.0, 75.0] % | 50.0 % | 50.0 % | +25.0 [+25.0, +25.0] % |" in lines[5]
    assert lines[5].endswith("| – | – | 10 | 2.0 | – |")
    assert "| slow, short | 25.0 [0.0, 50.0] % | 25.0 [25.0, 25.0] % |" in lines
    assert lines[-1] == "- not there: fp8: no"


def test_only_what_is_all_equal_shows_as_100() -> None:
    assert [percent(share) for share in (1.0, 0.999999, 0.5, None)] == ["100 %", "99.99 %", "50.00 %", "–"]


def test_what_is_heard_of_codes_is_what_was_written_and_the_same_codes_are_heard_once(tmp_path: Path) -> None:
    arguments = argparse.Namespace(
        checkpoint=DEMO, out=tmp_path, folder=tmp_path, device="cpu", sentences=1, num_step=16, rate=1.0
    )
    arguments.rows, arguments.reference = "*4-in-flight*", None
    generate(arguments)
    arguments.rows = ""
    listen(arguments)
    rows = json.loads((tmp_path / "table.json").read_text("utf-8"))["rows"]
    assert rows["float32-eager-batches-of-32-short"]["figures"]["mean"]["mean"] <= 0.2
    assert rows["float32-eager-4-in-flight-short"]["figures"]["more"] == {"mean": 0.0, "low": 0.0, "high": 0.0}
    heard = (tmp_path / "heard.jsonl").read_text("utf-8")
    assert len(heard.splitlines()) == 1
    listen(arguments)
    assert (tmp_path / "heard.jsonl").read_text("utf-8") == heard
    assert "| float32 eager, 4 in flight, short | 1 |" in (tmp_path / "table.md").read_text("utf-8")
