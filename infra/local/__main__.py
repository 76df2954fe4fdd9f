"""`python -m infra.local demo|up|down|status|doctor|jobs`: the whole system on this machine, by `OMNIVOICE_*`.

Exit status: 0, 2 when something stands in the way (one line says what), 130 when told to stop; of `status` 1 unless all
of the stack runs and answers. `doctor` and `jobs` are `python -m worker doctor` and `python -m worker.jobs` with the
settings of what runs here, and have their own.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from infra.local import demo
from infra.local.environment import DEMO_CHECKPOINT
from infra.local.errors import LocalError
from infra.local.interruption import Interrupted, hold_back_signals, interruptible
from infra.local.services import CHECKOUT
from infra.local.stack import Stack, condition, differing
from infra.local.state import State, locked

NOT_ALL_RUNS_STATUS = 1
FAILED_STATUS = 2
INTERRUPTED_STATUS = 130
ALWAYS_OURS = ("api", "worker")
"""Redis and the object store may be the caller's own."""


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m infra.local", description=__doc__, allow_abbrev=False)
    parser.add_argument("command", choices=["demo", "up", "down", "status", "doctor", "jobs"])
    parser.add_argument("--state", type=Path, default=CHECKOUT / ".run", help="folder for data, logs and process ids")
    parser.add_argument("--output", type=Path, default=Path("demo.wav"), help="where `demo` puts its audio")
    # What follows `jobs` is that command's own, `--help` as well.
    ours = list(arguments).index("jobs") + 1 if "jobs" in arguments else len(arguments)
    options, more = parser.parse_args(arguments[:ours]), arguments[ours:]
    hold_back_signals()
    stack_folder = options.state / "stack"
    try:
        if options.command == "up":
            return _up(stack_folder)
        if options.command == "down":
            return _down(stack_folder)
        if options.command == "status":
            return _status(State.load(stack_folder))
        if options.command == "doctor":
            return Stack(State.load(stack_folder), os.environ, _say).run("worker", "doctor")
        if options.command == "jobs":
            return Stack(State.load(stack_folder), os.environ, _say).run("worker.jobs", *more)
        return _demo(options.state, options.output)
    except LocalError as error:
        print(f"{options.command}: {error}", file=sys.stderr)
        return FAILED_STATUS
    except Interrupted:
        print(f"{options.command}: interrupted; what it started is stopped", file=sys.stderr)
        return INTERRUPTED_STATUS


def _say(line: str) -> None:
    try:
        print(line, flush=True)
    except BrokenPipeError:
        # Whoever watched (`| head`) has left: that must not keep services from being stopped.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _up(folder: Path) -> int:
    with locked(folder) as state:
        address = Stack(state, os.environ, _say).up()
    _say("")
    _say(f"API      {address}/v1/jobs   (description: {address}/openapi.json)")
    _status(State.load(folder))
    _say("Stop it with `make down`.")
    return 0


def _down(folder: Path) -> int:
    if not folder.exists():
        _say("nothing was started here")
        return 0
    with locked(folder) as state:
        count = Stack(state, os.environ, _say).down()
    _say(f"stopped {count} services" if count else "nothing was running")
    return 0


def _status(state: State) -> int:
    if not state.records:
        _say("nothing runs here; start it with `make up`")
        return NOT_ALL_RUNS_STATUS
    all_run = True
    for record in state.records.values():
        text, runs = condition(record)
        _say(f"{record.name:<8} {record.address}   {text}; log: {state.log(record.name)}")
        all_run &= runs
    for name in ALWAYS_OURS:  # an interrupted command may have stopped one and no other
        if name not in state.records:
            _say(f"{name:<8} was stopped; start it with `make up`")
            all_run = False
    return 0 if all_run else NOT_ALL_RUNS_STATUS


def _demo(folder: Path, target: Path) -> int:
    """On what `up` left running, or on a stack of its own that is gone afterwards."""
    running = State.load(folder / "stack")
    if running.is_running("api") and running.is_running("worker"):
        _say("using what `make up` started, with the settings that it runs with")
        if ignored := differing(running.records["api"], os.environ):
            _say(f"not applied (`make up` would): {', '.join(ignored)}")
        _speak(running, target)
    else:
        _demo_alone(folder / "demo", target)
    return 0


def _demo_alone(folder: Path, target: Path) -> None:
    with locked(folder) as state:
        stack = Stack(state, os.environ, _say)
        stack.down()  # what a demo left that was killed before it could stop them
        for data in ("redis", "seaweedfs"):
            shutil.rmtree(folder / data, ignore_errors=True)
        try:
            stack.up()
            _speak(state, target)
        finally:
            stack.down()


def _speak(state: State, target: Path) -> None:
    with interruptible():
        demo.speak(state.records["api"].address, os.environ.get("DEMO_API_KEY"), target, _say)
    if state.records["worker"].address == str(DEMO_CHECKPOINT):
        _say(demo.ABOUT_DEMO_MODEL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
