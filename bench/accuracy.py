"""Whether a mode changes what is said: its codes beside those of eager float32, and what a recogniser hears.

python -m bench.accuracy generate --checkpoint checkpoints/demo --out /tmp/accuracy
python -m bench.accuracy listen /tmp/accuracy

`generate` needs the engine's packages only and leaves `accuracy.json`, `codes.npz` and MODE.zip with the WAV files;
`listen` reads the folder, on another machine if need be, and needs the development packages.
"""

from __future__ import annotations

import argparse
import datetime
import gc
import json
import random
import time
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from bench.accuracy_texts import (
    MASK,
    SENTENCES,
    VOICE_SEED,
    VOICE_TEXT,
    Recogniser,
    State,
    Utterance,
    agreement,
    error_table,
    forced_agreement,
    tables,
    utterances_of,
    word_errors,
    words,
)
from bench.command import shown_command
from bench.peers.ours import wav_of
from omnivoice import Engine, EngineConfig, SamplingParams, SynthesisResult, VoicePrompt
from omnivoice.chunk_run import ChunkRun
from omnivoice.device import on_stream
from omnivoice.parameters import NUM_CODEBOOKS
from omnivoice.planning import plan
from omnivoice.request import Codes
from omnivoice.text import combine_text

BASELINE = "eager-float32"
MODES: dict[str, dict[str, Any]] = {
    BASELINE: {"dtype": "float32", "graphs": False},
    "eager-bfloat16": {"dtype": "bfloat16", "graphs": False},
    "float64": {"dtype": "float64"},
    "float32": {"dtype": "float32"},
    "bfloat16": {"dtype": "bfloat16"},
    "float16": {"dtype": "float16"},
    "fp8": {"dtype": "bfloat16", "fp8": True},
    "deterministic": {"dtype": "bfloat16", "deterministic": True},
}
"""Fields of `EngineConfig`. One that is off, and that the config does not have, is as good as off."""
DEFAULT_MODES = ("float32", "bfloat16", "float16", "fp8", "deterministic")

BATCHES = (8, 32)
FORCED_AT = (0, 1 / 8, 1 / 4, 1 / 2, 3 / 4, 15 / 16)
"""Where, among the steps, a mode goes one step from the baseline's codes."""
FORCED_BATCH = 8

Item = TypeVar("Item")


class ModeFailed(Exception):
    """A mode cannot be had, or one of its requests failed; the others' figures do not depend on it."""


@dataclass(frozen=True, slots=True)
class Spoken:
    """What a mode made of all utterances: codes by setting and name, files by name, forced tokens by state; figures."""

    codes: dict[str, dict[str, Codes]]
    wavs: dict[str, bytes]
    forced: list[NDArray[Any]]
    figures: dict[str, Any]


def settings_of(num_step: int) -> dict[str, SamplingParams]:
    greedy = SamplingParams(num_step=num_step, position_temperature=0.0, class_temperature=0.0)
    return {"default": SamplingParams(num_step=num_step), "greedy": greedy}


def options_of(mode: str, known: Sequence[str]) -> dict[str, Any]:
    """The config fields of `mode` among those `known`; raises `ModeFailed` where one that is on is not there."""
    options = MODES[mode]
    if missing := [name for name, value in options.items() if name not in known and value is not False]:
        raise ModeFailed(f"EngineConfig has no field {', '.join(missing)}")
    return {name: value for name, value in options.items() if name in known}


def start(mode: str, arguments: argparse.Namespace) -> Engine:
    options = options_of(mode, [field.name for field in fields(EngineConfig)])
    config = EngineConfig(device=arguments.device, max_batch_requests=max(BATCHES), **options)
    return Engine.from_checkpoint(arguments.checkpoint, config)


def voice_of(engine: Engine, params: SamplingParams) -> VoicePrompt:
    """The reference voice: the model's own, saying `VOICE_TEXT`."""
    speaker = Utterance("voice", VOICE_TEXT, VOICE_SEED)
    return VoicePrompt(together(engine, [speaker], params)["voice"], VOICE_TEXT)


def together(engine: Engine, utterances: Sequence[Utterance], params: SamplingParams) -> dict[str, Codes]:
    """The codes (8, frames) of utterances that share a batch, by name."""
    results = engine.generate_codes([utterance.request(params) for utterance in utterances])
    return {utterance.name: _codes(utterance, result) for utterance, result in zip(utterances, results, strict=True)}


def _codes(utterance: Utterance, result: SynthesisResult) -> Codes:
    if not isinstance(result.codes, np.ndarray):
        raise ModeFailed(f"{utterance.text!r}: {result.error}")
    return result.codes


def in_batches(items: Sequence[Item], size: int, seed: int) -> list[list[Item]]:
    """Shuffle `items` and cut them into batches of `size`; the last one may be smaller."""
    shuffled = random.Random(seed).sample(items, len(items))
    return [shuffled[first : first + size] for first in range(0, len(shuffled), size)]


def run_of(engine: Engine, utterance: Utterance, params: SamplingParams) -> ChunkRun:
    """What the engine makes of a request of one chunk; a test compares the codes of both."""
    request, voice = utterance.request(params), utterance.voice
    made = plan(request)
    text = combine_text(made.chunks[0].text, voice.ref_text if voice else None)
    prompt = engine._tokenizer.prompt(text, made.language, made.instruct, denoise=voice is not None)
    return ChunkRun(utterance.name, 0, prompt, voice.codes if voice else None, made.frames, params, utterance.seed)


def states_of(engine: Engine, utterances: Sequence[Utterance], params: SamplingParams) -> list[State]:
    """Run the utterances and keep their codes before and after the steps at `FORCED_AT`."""
    steps = {int(share * params.num_step) for share in FORCED_AT}
    executor, states = engine._executor, []
    with on_stream(engine._stream):
        for batch in in_batches(utterances, FORCED_BATCH, seed=0):
            runs = [run_of(engine, utterance, params) for utterance in batch]
            for run in runs:
                run.codes = torch.full((run.frames, NUM_CODEBOOKS), MASK, device=engine.codec.device)
            executor.set_runs(runs)
            for step in range(params.num_step):
                before = [executor.codes(run).cpu().numpy() for run in runs]
                executor.step()
                if step in steps:
                    after = [executor.codes(run).cpu().numpy() for run in runs]
                    states += list(map(State, batch, [step] * len(batch), before, after))
            executor.set_runs([])
    return states


def forced_tokens(engine: Engine, states: Sequence[State], params: SamplingParams) -> list[NDArray[Any]]:
    """The tokens that a mode would put into each state: one step that unmasks all that is left; (frames, 8) each."""
    executor, found = engine._executor, []
    with on_stream(engine._stream):
        for first in range(0, len(states), FORCED_BATCH):
            runs = []
            for state in states[first : first + FORCED_BATCH]:
                run = run_of(engine, state.utterance, params)
                run.step, run.codes = state.step, torch.from_numpy(state.before).to(engine.codec.device)
                run.schedule[state.step] = int(state.masked.sum())
                runs.append(run)
            executor.set_runs(runs)
            executor.step()
            found += [executor.codes(run).cpu().numpy() for run in runs]
            executor.set_runs([])
    return found


def speak(
    engine: Engine,
    utterances: Sequence[Utterance],
    settings: Mapping[str, SamplingParams],
    states: Sequence[State],
    baseline: Spoken | None = None,
) -> Spoken:
    """All that one mode is asked for, and its figures beside the baseline's; without one it is the baseline."""
    started = time.perf_counter()
    default, wavs = settings["default"], {}
    codes: dict[str, dict[str, Codes]] = {setting: {} for setting in settings}
    for one in utterances:
        (result,) = engine.generate([one.request(default)])
        codes["default"][one.name] = _codes(one, result)
        assert result.waveform is not None
        wavs[one.name] = wav_of(result.waveform)
        codes["greedy"] |= together(engine, [one], settings["greedy"])
    figures: dict[str, Any] = {}
    mine = Spoken(codes, wavs, forced_tokens(engine, states, default), figures)
    wanted = baseline or mine
    figures["alone"] = {setting: agreement(codes[setting], wanted.codes[setting]) for setting in settings}
    figures["forced"] = forced_agreement(mine.forced, wanted.forced, states)
    figures["batches"] = {}
    for size in BATCHES:
        batched: dict[str, Codes] = {}
        for batch in in_batches(utterances, size, seed=size):
            batched |= together(engine, batch, default)
        figures["batches"][str(size)] = agreement(batched, codes["default"])
    figures["seconds"] = round(time.perf_counter() - started, 1)
    return mine


def begin(
    arguments: argparse.Namespace, settings: Mapping[str, SamplingParams]
) -> tuple[list[Utterance], list[State], Spoken]:
    """What all modes are compared by: utterances, partial states, and what the baseline makes of them."""
    engine = start(BASELINE, arguments)
    utterances = utterances_of(arguments.texts, voice_of(engine, settings["default"]))
    states = states_of(engine, utterances, settings["default"])
    return utterances, states, speak(engine, utterances, settings, states)


def keep(folder: Path, mode: str, spoken: Spoken, kept: dict[str, Any], results: dict[str, Any]) -> None:
    """Write a mode's files, and add it to the codes and figures of those before."""
    folder.mkdir(parents=True, exist_ok=True)
    for setting, by_name in spoken.codes.items():
        kept.update({f"{mode}/{setting}/{name}": codes.astype(np.int16) for name, codes in by_name.items()})
    np.savez_compressed(folder / "codes.npz", **kept)
    with zipfile.ZipFile(folder / f"{mode}.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, wav in spoken.wavs.items():
            archive.writestr(f"{name}.wav", wav)
    results["modes"][mode] = spoken.figures
    (folder / "accuracy.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"{mode}: {spoken.figures['seconds']} s", flush=True)


def generate(arguments: argparse.Namespace) -> None:
    results: dict[str, Any] = {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "command": shown_command("bench.accuracy"),
        "device": torch.cuda.get_device_name() if arguments.device == "cuda" else "CPU",
        "torch": torch.__version__,
        "modes": {},
        "not_there": {},
    }
    kept: dict[str, Any] = {}
    settings = settings_of(arguments.num_step)
    utterances, states, baseline = begin(arguments, settings)
    results["texts"] = {one.name: one.text for one in utterances}
    keep(arguments.out, BASELINE, baseline, kept, results)
    for mode in arguments.modes:
        if mode == BASELINE:
            continue
        gc.collect()  # the engine before it leaves its memory to this one
        if arguments.device == "cuda":
            torch.cuda.empty_cache()
        try:
            mine = speak(start(mode, arguments), utterances, settings, states, baseline)
            keep(arguments.out, mode, mine, kept, results)
        except (ModeFailed, ValueError, RuntimeError) as error:
            results["not_there"][mode] = f"{type(error).__name__}: {error}"
            print(f"{mode}: not there: {error}", flush=True)
    (arguments.out / "accuracy.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    print(f"\n{results['device']}, torch {results['torch']}, {results['date']}; {len(utterances)} requests", end="")
    print(f", {arguments.num_step} steps\n\n{tables(BASELINE, results['modes'])}")


def listen(arguments: argparse.Namespace) -> None:
    results = json.loads((arguments.folder / "accuracy.json").read_text(encoding="utf-8"))
    texts: dict[str, str] = results["texts"]
    recogniser = Recogniser()
    heard, errors = {}, {}
    for mode in results["modes"]:
        with zipfile.ZipFile(arguments.folder / f"{mode}.zip") as archive:
            heard[mode] = {name: recogniser(archive.read(f"{name}.wav")) for name in texts}
        errors[mode] = {name: word_errors(text, heard[mode][name]) for name, text in texts.items()}
    report = {"texts": texts, "heard": heard, "errors": errors}
    (arguments.folder / "heard.json").write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"{results['device']}, torch {results['torch']}, {results['date']}; heard by whisper-tiny\n")
    print(error_table(BASELINE, errors, {name: len(words(text)) for name, text in texts.items()}))


def modes_in(text: str) -> list[str]:
    """Comma-separated modes, each once; raises `argparse.ArgumentTypeError` for one that there is not."""
    chosen = list(dict.fromkeys(text.split(",")))
    if unknown := [mode for mode in chosen if mode not in MODES]:
        raise argparse.ArgumentTypeError(f"{', '.join(unknown)}: not one of {', '.join(MODES)}")
    return chosen


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    speaking = commands.add_parser("generate", help="speak the sentences in every mode and compare the codes")
    speaking.add_argument("--checkpoint", type=Path, required=True)
    speaking.add_argument("--out", type=Path, required=True, help="folder for figures, codes and files")
    speaking.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    speaking.add_argument("--modes", type=modes_in, default=list(DEFAULT_MODES), help=f"of {', '.join(MODES)}")
    speaking.add_argument("--texts", type=int, default=len(SENTENCES), help="how many of the sentences")
    speaking.add_argument("--num-step", type=int, default=SamplingParams().num_step)
    speaking.set_defaults(command=generate)
    listening = commands.add_parser("listen", help="word error rates of what `generate` left")
    listening.add_argument("folder", type=Path)
    listening.set_defaults(command=listen)
    arguments = parser.parse_args()
    arguments.command(arguments)


if __name__ == "__main__":
    main()
