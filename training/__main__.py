"""python -m training prepare|speech|codec|generator|export|check

The stages in their order; README.md says what each takes. A stage that ran out of its minutes exits with status 3: the
same command goes on from where it was.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from training.recipe import RECIPES, SEED, Recipe
from training.speech import gather_libraries
from training.stage import Stage
from training.text import common_words, make_lines, wordnet_sentences, write_lines

GO_ON = 3
STAGES = ("prepare", "speech", "codec", "generator", "export", "check")


def main(arguments: list[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    stage = Stage(options.work, options.stage, options.minutes * 60)
    if _run(stage, options, RECIPES[options.recipe]):
        return 0
    print(f"{options.stage}: stopped after {options.minutes:g} minutes; the same command goes on", file=sys.stderr)
    return GO_ON


def _run(stage: Stage, options: argparse.Namespace, recipe: Recipe) -> bool:
    flite = None if options.tones else stage.work / "flite"
    if stage.name == "prepare":
        return prepare(stage, recipe, options.root)
    if stage.name == "speech":
        from training import speech  # noqa: PLC0415 - each stage loads what it needs

        return speech.run(stage, recipe, flite, options.processes)
    import torch  # noqa: PLC0415

    device = torch.device(options.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if stage.name == "codec":
        from training import codec  # noqa: PLC0415

        return codec.run(stage, recipe, device)
    if stage.name == "generator":
        from training import generator  # noqa: PLC0415

        return generator.run(stage, recipe, device, 8 if options.processes is None else options.processes)
    if stage.name == "export":
        from training import export  # noqa: PLC0415

        return export.run(stage, options.checkpoint)
    from training import check  # noqa: PLC0415

    return check.run(stage, flite, options.checkpoint, str(device), options.sentences, options.trials, options.steps)


def prepare(stage: Stage, recipe: Recipe, root: Path) -> bool:
    """The texts, and flite's libraries, out of Debian packages that are installed or unpacked under `root`."""
    gather_libraries(root, stage.work / "flite")
    words = common_words()
    sentences = wordnet_sentences(root / "usr" / "share" / "wordnet", set(words))
    lines = make_lines(sentences, words, recipe.num_lines, SEED)
    write_lines(stage.work / "text.jsonl", lines)
    stage.log(lines=len(lines), held_out=sum(line.is_held_out for line in lines))
    return True


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m training", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("stage", choices=STAGES)
    parser.add_argument("--work", type=Path, default=Path(".training"), help="folder of all stages (.training)")
    parser.add_argument("--recipe", choices=RECIPES, default="full")
    parser.add_argument("--minutes", type=float, default=8.5, help="after these the stage saves and stops (8.5)")
    parser.add_argument("--device", help="cuda or cpu; the first there is")
    parser.add_argument("--processes", type=int, help="speech: all cores; generator: 8, and 0 for none beside")
    parser.add_argument("--root", type=Path, default=Path("/"), help="prepare: where Debian's packages are")
    parser.add_argument("--tones", action="store_true", help="speech, check: a tone a letter instead of flite")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoints/small"), help="export, check: its folder")
    parser.add_argument("--sentences", type=int, default=100, help="check: held-out sentences a voice")
    parser.add_argument("--trials", type=int, default=50, help="check: clips that are cloned")
    parser.add_argument("--steps", type=int, default=32, help="check: num_step")
    return parser


if __name__ == "__main__":
    sys.exit(main())
