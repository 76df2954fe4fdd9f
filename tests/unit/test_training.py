"""The training on a tiny recipe, with tones for voices: every stage, restarts, and the engine on what comes out."""

from __future__ import annotations

import json
import os
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from omnivoice import Engine, EngineConfig, SamplingParams, SynthesisRequest
from omnivoice.audio.resample import resample
from omnivoice.model.codec import Codec
from omnivoice.model.config import ModelConfig
from omnivoice.parameters import HOP_LENGTH, SAMPLE_RATE
from omnivoice.sampling import RowParams, pick_cells, position_scores
from omnivoice.text import estimate_frames, unmask_counts
from training.__main__ import GO_ON, main
from training.check import is_sentence, median_pitch
from training.codec import ENCODE_MULTIPLE, new_network, to_semantic, write_codec, write_configs
from training.corpus import Corpus
from training.documents import (
    GENERATION_SHARE,
    IGNORED,
    MASK,
    PACE_TOLERANCE,
    Documents,
    masked_shares,
    number_of_utterances,
    pack,
    unmasked_shares,
)
from training.export import TooLarge
from training.export import run as export
from training.generator import new_weights, orthogonal, write_config
from training.losses import SpectralLoss, mel_filters
from training.quantiser import Averages, quantise
from training.recipe import FULL, TINY, VOICES, Phase
from training.speech import FliteVoice, ToneVoice, balanced, gather_libraries, resampled, speak
from training.stage import Stage
from training.text import Line, make_lines, read_lines, templates, wordnet_sentences, write_lines

WORDNET = """\
  1 This software and database is being provided to you, the LICENSEE, by
00002724 29 v 01 choke 0 002 @ 00001740 v 0000 01 + 02 00 | breathe with difficulty (or pain); "She choked, then spoke"
00003316 29 v 01 aspirate 0 003 @ 00005041 v 0000 01 + 08 00 | suck in; "sleep"; "He is 7 feet"; "the unheardof word"
"""
KNOWN = {"breathe", "with", "difficulty", "she", "choked", "then", "spoke", "suck", "in", "he", "is", "feet", "the"}
WORDS = ("garden", "house", "flower", "window", "station", "brother", "children", "street", "river", "summer")
FLITE_ROOT = Path(os.environ.get("FLITE_ROOT", "/"))
"""Where Debian's packages flite, libflite1 and libasound2 were unpacked, if they are not installed."""


def stage_command(name: str, work: Path, *more: str) -> int:
    options = ("--work", str(work), "--recipe", "tiny", "--device", "cpu", "--processes", "1")
    if name == "generator":
        options = (*options[:-1], "0")
    return main([name, *options, *more])


def make_speech(work: Path) -> None:
    """The tiny recipe's texts, one of them held out for each voice, and the tones that say them."""
    work.mkdir(parents=True)
    rng = random.Random(1)
    sentences = (" ".join(rng.choices(WORDS, k=6)) for _ in range(400))
    lines = make_lines(sentences, WORDS, 600, seed=1)
    learnt, held_out = ([line for line in lines if line.is_held_out == flag] for flag in (False, True))
    held_out.sort(key=is_sentence, reverse=True)  # check needs some
    num_held_out = TINY.num_lines // 5
    assert is_sentence(held_out[1])
    write_lines(work / "text.jsonl", held_out[:num_held_out] + learnt[: TINY.num_lines - num_held_out])
    assert stage_command("speech", work, "--tones") == 0


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All stages, one after another without a stop; `checkpoint/` is what they make."""
    work = tmp_path_factory.mktemp("training") / "work"
    make_speech(work)
    for name in ("codec", "generator", "export"):
        assert stage_command(name, work, "--checkpoint", str(work / "checkpoint")) == 0
    return work


@pytest.mark.parametrize("name", ["codec", "generator"])
def test_loss_falls_and_is_logged(work: Path, name: str) -> None:
    losses = [line["loss"] for line in Stage(work, name).lines() if "loss" in line]
    assert losses[-1] < 0.95 * losses[0]
    assert (work / f"{name}.svg").read_text().startswith("<svg")


@pytest.mark.parametrize("name", ["codec", "generator"])
def test_a_stopped_stage_goes_on_as_if_it_had_not_been_stopped(work: Path, name: str, tmp_path: Path) -> None:
    for path in work.iterdir():
        if path.name.split(".")[0] != name and path.name != "checkpoint":
            (tmp_path / path.name).symlink_to(path)
    for _ in range(2):
        assert stage_command(name, tmp_path, "--minutes", "0") == GO_ON  # one step each
    assert torch.load(tmp_path / f"{name}.pt")["step"] == 2
    (tmp_path / "audio_tokenizer").unlink()
    (tmp_path / "codes.npz").unlink() if name == "codec" else None
    assert stage_command(name, tmp_path) == 0
    whole, stopped = (torch.load(folder / f"{name}.pt") for folder in (work, tmp_path))
    part = "network" if name == "codec" else "weights"
    assert whole["step"] == stopped["step"]
    assert whole[part].keys() == stopped[part].keys()
    assert all(torch.equal(tensor, stopped[part][key]) for key, tensor in whole[part].items())


def test_a_finished_part_of_the_speech_is_not_made_again(work: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in (work / "speech").iterdir()}
    assert len(before) == TINY.num_lines // TINY.part_lines
    assert stage_command("speech", work, "--tones") == 0
    assert {path: path.stat().st_mtime_ns for path in (work / "speech").iterdir()} == before


def test_codes_are_those_of_the_engine_s_codec(work: Path) -> None:
    codec = Codec.from_folder(work)
    corpus = Corpus.read(work)
    samples = np.load(work / "speech" / "0000.npz")["samples"].astype(np.float32) / 2**15
    for utterance in range(3):
        start, end = corpus.starts[utterance : utterance + 2]
        silence = np.zeros(-(end - start) % ENCODE_MULTIPLE * HOP_LENGTH, dtype=np.float32)
        codes = codec.encode(np.concatenate([samples[start * HOP_LENGTH : end * HOP_LENGTH], silence]))
        assert (corpus.of(utterance) == codes.T[: end - start]).mean() > 0.99  # near ties fall otherwise in a stack


def test_engine_speaks_with_the_checkpoint(work: Path) -> None:
    engine = Engine.from_checkpoint(work / "checkpoint", EngineConfig(device="cpu"))
    params = SamplingParams(num_step=4)
    clip = ToneVoice("slt")("a clip of two seconds, at the very least", 1.2)
    voice = engine.encode_voice(clip / 4, SAMPLE_RATE, "a clip of two seconds, at the very least.")
    for request in (
        SynthesisRequest("Good morning.", "en", "female, american accent", seed=1, params=params),
        SynthesisRequest("Good morning.", voice=voice, seed=1, params=params),
    ):
        result = engine.generate_codes([request])[0]
        assert result.error is None
        assert isinstance(result.codes, np.ndarray)
        assert result.codes.shape[0] == 8
    result = engine.generate([SynthesisRequest("Good morning.", "en", seed=1, params=params)])[0]
    assert result.error is None
    assert result.waveform is not None
    assert np.isfinite(result.waveform).all()


def test_check_clones_held_out_clips(work: Path) -> None:
    more = ("--checkpoint", str(work / "checkpoint"), "--sentences", "0", "--trials", "3", "--steps", "2", "--tones")
    assert stage_command("check", work, *more) == 0
    figures = json.loads((work / "check.json").read_text())
    assert figures["both"].endswith(" of 3")
    (work / "generator.pt").rename(work / "elsewhere.pt")  # the card alone
    assert stage_command("export", work, *more) == 0
    (work / "elsewhere.pt").rename(work / "generator.pt")
    assert "| both | " in (work / "checkpoint" / "README.md").read_text()


def test_check_of_a_codec_alone_tells_what_it_makes_of_the_teachers(work: Path, tmp_path: Path) -> None:
    (tmp_path / "audio_tokenizer").symlink_to(work / "checkpoint" / "audio_tokenizer")
    (tmp_path / "text.jsonl").symlink_to(work / "text.jsonl")
    assert stage_command("check", tmp_path, "--checkpoint", str(tmp_path), "--sentences", "1", "--tones") == 0
    figures = json.loads((tmp_path / "check.json").read_text())
    who = {name.partition(":")[0] for name in figures if ":" in name}
    assert who == {f"{voice}, its teacher{rest}" for voice in VOICES for rest in ("", " through the codec")}


def test_full_sizes_fit_into_the_package(tmp_path: Path) -> None:
    config = write_config(tmp_path, FULL.generator)
    assert config.text_vocab_size > MASK, "the reference package looks up every code in the text table too"
    write_configs(tmp_path / "audio_tokenizer", FULL.codec)
    network = new_network(tmp_path / "audio_tokenizer")
    write_codec(tmp_path / "audio_tokenizer", network, Averages(1024, FULL.codec.codebook_dim))
    Stage(tmp_path, "generator").save({"step": 0, "weights": new_weights(config)})
    out = tmp_path / "checkpoint"
    assert export(Stage(tmp_path, "export"), out)
    assert ModelConfig.from_folder(out) == config
    assert Engine.from_checkpoint(out, EngineConfig(device="cpu")).sample_rate == SAMPLE_RATE
    (tmp_path / "audio_tokenizer" / "padding").write_bytes(bytes(2_000_000))
    with pytest.raises(TooLarge, match="17,000,000"):
        export(Stage(tmp_path, "export"), out)


def test_wordnet_gives_sentences_of_known_words_alone(tmp_path: Path) -> None:
    for name in ("data.noun", "data.adj", "data.adv"):
        (tmp_path / name).write_text("")
    (tmp_path / "data.verb").write_text(WORDNET)
    assert list(wordnet_sentences(tmp_path, KNOWN)) == [
        "She choked, then spoke.",
        "Breathe with difficulty.",
        "Suck in.",
    ]


def test_lines_are_the_same_for_the_same_seed_and_mostly_learnt() -> None:
    lines = make_lines([f"the {word} of the river." for word in WORDS], WORDS, 2_000, seed=3)
    assert lines == make_lines([f"the {word} of the river." for word in reversed(WORDS)], WORDS, 2_000, seed=3)
    held_out = sum(line.is_held_out for line in lines) / len(lines)
    assert 0.005 < held_out < 0.05
    assert Line("Page 7.", "Page seven.").is_held_out == Line("Page seven.", "page SEVEN").is_held_out


def test_templates_write_some_numbers_as_digits_and_say_all_in_words() -> None:
    lines = [templates(random.Random(seed)) for seed in range(500)]
    with_digits = [line for line in lines if any(letter.isdigit() for letter in line.written)]
    assert 20 < len(with_digits) < 200
    assert not any(letter.isdigit() for line in lines for letter in line.spoken)


def test_speech_has_the_length_that_the_rule_gives(work: Path) -> None:
    lines = read_lines(work / "text.jsonl")
    near = []
    for index, line in enumerate(lines):
        spoken = speak(ToneVoice("slt"), line, random.Random(index))
        frames = len(spoken.waveform) / HOP_LENGTH
        assert frames.is_integer()
        assert 0 < spoken.voiced <= frames
        level = np.sqrt(np.mean(np.square(spoken.waveform[: spoken.voiced * HOP_LENGTH] / 2**15)))
        assert level == pytest.approx(0.1, rel=0.1)
        near.append(abs(frames / estimate_frames(line.written) - 1) < 0.06)
    assert 0.5 < np.mean(near) < 1


@pytest.mark.skipif(not any(FLITE_ROOT.glob("usr/lib/*/libflite_cmu_us_slt.so.1")), reason="no flite under FLITE_ROOT")
def test_flite_says_a_line_in_every_voice(tmp_path: Path) -> None:
    gather_libraries(FLITE_ROOT, tmp_path)
    for name in VOICES:
        voice, line = FliteVoice(name, tmp_path), Line("Good morning, Mary.", "Good morning, Mary.")
        spoken, again = (speak(voice, line, random.Random(1)).waveform for _ in range(2))
        assert 80 < median_pitch(spoken.astype(np.float32) / 2**15) < 250
        assert np.array_equal(spoken, again), "the same seed has the same noise, whatever was said before"
        assert not np.array_equal(voice(line.spoken, 1.0, seed=1), voice(line.spoken, 1.0, seed=2))


def test_documents_ask_only_for_masked_cells(work: Path) -> None:
    documents = Documents(work, TINY.generator)
    for step in (0, len(documents) - 1):
        batch = documents[step]
        phase = documents.phase(step)
        assert sum(batch.lengths) == phase.tokens
        assert max(batch.lengths) <= phase.longest
        assert batch.labels.shape == (phase.frames, 8)
        asked = batch.labels != IGNORED
        learnt = asked.any(1)
        assert learnt.any()
        rows = batch.audio[batch.order[batch.targets[learnt]] - phase.tokens]
        assert ((rows == MASK) == asked[learnt]).all()
        again = documents[step]
        assert torch.equal(batch.labels, again.labels)
        assert torch.equal(batch.text, again.text)


def test_held_out_lines_are_never_learnt(work: Path) -> None:
    corpus = Corpus.read(work)
    for voice in range(len(VOICES)):
        assert all(not corpus.line(one).is_held_out for one in corpus.utterances(voice))
        assert all(corpus.line(one).is_held_out for one in corpus.utterances(voice, held_out=True))
        assert len(corpus.utterances(voice, held_out=True))


def test_packed_documents_start_at_position_zero(work: Path) -> None:
    documents, rng = Documents(work, TINY.generator), np.random.default_rng(5)
    made = [documents.document(documents.phase(0), rng) for _ in range(20)]
    assert any(not document.prompt for document in made)
    assert any(len(document.reference) for document in made)
    phase = Phase(1, 8_192, 1, 500)
    batch = pack(made, phase)
    ends = np.cumsum(batch.lengths).tolist()
    assert list(batch.lengths[:20]) == [document.num_rows for document in made]
    assert ends[-1] == phase.tokens
    assert batch.offsets.tolist() == [0, *ends, *[phase.tokens] * (phase.sequences - len(ends))]
    assert batch.positions[[0, *ends[:-1]]].eq(0).all()
    num_text = sum(len(document.prompt) for document in made)
    is_text = batch.order[: ends[19]] < phase.tokens
    assert batch.order[: ends[19]][is_text].tolist() == list(range(num_text))


def test_a_document_keeps_one_pace(work: Path) -> None:
    """What is joined may be drawn from utterances of one pace alone, and any utterance may be drawn."""
    documents, corpus, rng = Documents(work, TINY.generator), Corpus.read(work), np.random.default_rng(1)
    drawn: set[int] = set()
    for _ in range(200):
        alike = documents.of_one_pace(0, rng)
        rates = [corpus.table[one, 3] / estimate_frames(corpus.line(one).written) for one in alike]
        assert max(rates) <= PACE_TOLERANCE**2 * min(rates)
        drawn |= set(alike.tolist())
    assert drawn == set(corpus.utterances(0).tolist())


def test_short_documents_have_as_many_rows_to_learn_from_as_long_ones() -> None:
    rng, most = np.random.default_rng(1), 7
    drawn = np.array([number_of_utterances(most, rng) for _ in range(20_000)])
    assert set(drawn.tolist()) == set(range(1, most + 1))
    shares = np.bincount(drawn, weights=drawn)[1:] / drawn.sum()
    assert (abs(shares * most - 1) < 0.25).all(), "with all numbers as frequent, it were 0.25 to 1.75"
    assert {number_of_utterances(1, rng) for _ in range(100)} == {1}


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_phase_says_how_many_documents_have_a_reference(work: Path, share: float) -> None:
    documents, rng = Documents(work, TINY.generator), np.random.default_rng(1)
    phase = replace(TINY.generator.phases[1], referenced=share)
    made = [documents.document(phase, rng) for _ in range(40)]
    with_prompt = [len(document.reference) > 0 for document in made if document.prompt]
    assert len(with_prompt) > 20
    assert with_prompt == [share == 1.0] * len(with_prompt)


def test_masks_are_like_those_of_generation() -> None:
    """The engine's own schedule and choice of cells, where the model is equally sure of all of them."""
    frames, steps, params = 400, 32, SamplingParams()
    segment = torch.zeros(frames, dtype=torch.int64)
    key, whole = torch.full((frames,), 7, dtype=torch.int64), torch.ones(frames)
    rows = RowParams(
        segment=segment,
        frame=torch.arange(frames),
        chunk=segment,
        key_low=key,
        key_high=key,
        guidance_scale=whole * params.guidance_scale,
        layer_penalty_factor=whole * params.layer_penalty_factor,
        position_temperature=whole * params.position_temperature,
        class_temperature=whole * params.class_temperature,
    )
    masked, totals = torch.ones(frames, 8, dtype=torch.bool), []
    for step, count in enumerate(unmask_counts(frames, steps, params.t_shift)):
        assert np.abs(unmasked_shares(totals[-1] if totals else 0.0) - (~masked).float().mean(0).numpy()).max() < 0.05
        scores = position_scores(torch.zeros(frames, 8), rows, torch.full((frames,), step))
        masked &= ~pick_cells(scores.where(masked, -torch.inf), segment, torch.tensor([count]))
        totals.append(1 - float(masked.float().mean()))
    rng = np.random.default_rng(1)
    drawn = [1 - masked_shares(rng).mean() for _ in range(4_000)]
    unmasked = GENERATION_SHARE * np.mean([0, *totals[:-1]]) + (1 - GENERATION_SHARE) / 2
    assert np.mean(drawn) == pytest.approx(unmasked, abs=0.02)


def test_quantising_in_training_is_the_engine_s(work: Path) -> None:
    network = new_network(work / "audio_tokenizer")
    network.load_state_dict(torch.load(work / "codec.pt")["network"])
    averages = Averages(1024, TINY.codec.codebook_dim)
    averages.load_state_dict(torch.load(work / "codec.pt")["averages"])
    hidden, books = torch.randn(2, 5, TINY.codec.hidden + 16), torch.tensor([8, 3])
    codes = network.quantizer.encode(hidden)
    wanted = network.quantizer.decode(codes)
    first_three = sum(layer.decode(codes[1, i]) for i, layer in enumerate(network.quantizer.layers()[:3]))
    drawn = torch.zeros(8, 1024, dtype=torch.long)
    found, *_ = quantise(network, averages, hidden, books, drawn, is_first=False)
    assert torch.allclose(found[0], wanted[0], atol=1e-4)
    assert torch.allclose(found[1], first_three, atol=1e-4)


def test_a_voice_s_top_octave_has_no_mirror_image() -> None:
    time = np.arange(16_000) / 16_000
    tone = (np.sin(2 * np.pi * 7_000 * time) * np.hanning(16_000)).astype(np.float32)
    finer = resampled(tone, 16_000)
    assert len(finer) == 24_000
    power = np.square(np.abs(np.fft.rfft(finer)))  # a bin a hertz
    assert power[6_900:7_100].sum() > 0.999 * power.sum()
    assert power[8_000:].sum() < 1e-8 * power.sum()


def test_a_balanced_voice_has_its_pitch_turned_down_and_its_words_as_they_were() -> None:
    time = np.arange(24_000) / 24_000
    for hertz, wanted in ((100, -10.0), (250, -10.0), (500, -4.0), (1_000, 0.0), (6_000, 0.0)):
        tone = (np.sin(2 * np.pi * hertz * time) * np.hanning(24_000)).astype(np.float32)
        found = balanced(tone)
        assert len(found) == len(tone)
        change = 20 * np.log10(np.linalg.norm(found) / np.linalg.norm(tone))
        assert change == pytest.approx(wanted, abs=0.1), hertz


def test_the_loss_minds_what_is_quiet_but_not_what_lies_above_the_teachers() -> None:
    """A whisper at -70 dB that is missing, at 3 kHz and at 10."""
    loss, time = SpectralLoss(), torch.arange(24_000) / 24_000
    speech = 0.1 * torch.sin(2 * torch.pi * 200 * time)
    low, high = (3e-4 * torch.sin(2 * torch.pi * hertz * time) for hertz in (3_000, 10_000))
    assert loss(speech[None], speech[None]) == 0
    assert loss((speech + low)[None], speech[None]) > 5 * loss((speech + high)[None], speech[None])


def test_resampling_in_torch_is_the_engine_s() -> None:
    waveform = np.random.default_rng(1).standard_normal(8 * HOP_LENGTH).astype(np.float32)
    ours = to_semantic(torch.from_numpy(waveform)[None], 16_000)[0].numpy()
    np.testing.assert_allclose(ours, resample(waveform, SAMPLE_RATE, 16_000), atol=1e-5)


def test_newton_schulz_makes_matrices_nearly_orthogonal() -> None:
    made = orthogonal(torch.randn(3, 48, 32, generator=torch.Generator().manual_seed(1)))
    values = torch.linalg.svdvals(made)
    assert values.min() > 0.5
    assert values.max() < 1.4


def test_mel_filters_are_averages_over_neighbouring_bins() -> None:
    filters = mel_filters(64, 8)
    assert filters.shape == (8, 33)
    assert torch.allclose(filters.sum(1), torch.ones(8))
    assert filters.argmax(1).diff().gt(0).all()


def test_median_pitch_of_a_buzz() -> None:
    time = np.arange(SAMPLE_RATE) / SAMPLE_RATE
    buzz = sum(np.sin(2 * np.pi * 120 * harmonic * time) / harmonic for harmonic in range(1, 8)) / 8
    assert median_pitch(buzz.astype(np.float32)) == pytest.approx(120, rel=0.02)
