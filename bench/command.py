"""How a benchmark was called, as its results tell it: with no path of the machine that it ran on."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence


def shown_command(module: str, arguments: Sequence[str] | None = None) -> str:
    """`python -m module …`; an argument that is an absolute path becomes its option's name in capitals.

    `--out /tmp/x.json` and `--out=/tmp/x.json` are shown as `--out OUT`.
    """
    given = sys.argv[1:] if arguments is None else arguments
    words = [word for argument in given for word in _apart(argument)]
    options = ["", *words]
    shown = [_named(word, option) for option, word in zip(options, words, strict=False)]
    return shlex.join(["python", "-m", module, *shown])


def _apart(argument: str) -> list[str]:
    option, equals, value = argument.partition("=")
    return [option, value] if equals and option.startswith("--") else [argument]


def _named(word: str, option: str) -> str:
    if not word.startswith("/"):
        return word
    return option.removeprefix("--").replace("-", "_").upper() if option.startswith("--") else "PATH"
