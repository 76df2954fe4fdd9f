"""What keeps a worker from starting is one line that names it, and exit status 2."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from servers import S3Server, free_ports
from workers import REPOSITORY, run_worker

CHECKPOINT = REPOSITORY / "tests" / "golden" / "checkpoint"


def failed_start(environment: dict[str, str], **variables: str) -> str:
    """The one line on standard error of a worker that must not start."""
    run = subprocess.run(
        [sys.executable, "-m", "worker"],
        cwd=REPOSITORY,
        env={**environment, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (run.returncode, run.stdout) == (2, ""), run.stderr
    assert "Traceback" not in run.stderr
    lines = run.stderr.splitlines()
    assert len(lines) == 1, run.stderr
    return lines[0]


@pytest.mark.parametrize(
    ("name", "value"),
    [("OMNIVOICE_MAX_WAIT_MS", "soon"), ("OMNIVOICE_MODE", "batch"), ("OMNIVOICE_MAX_BATCH_REQUEST", "8")],
)
def test_bad_or_unknown_setting_is_named(name: str, value: str) -> None:
    assert name in failed_start({}, **{name: value})


def test_no_redis(environment: dict[str, str]) -> None:
    [port] = free_ports(1)
    line = failed_start(environment, OMNIVOICE_REDIS_URL=f"redis://:hunter2@127.0.0.1:{port}/0")
    assert f"127.0.0.1:{port}" in line
    assert "hunter2" not in line


def test_no_bucket(environment: dict[str, str]) -> None:
    assert "no-such-bucket" in failed_start(environment, OMNIVOICE_S3_BUCKET="no-such-bucket")


def test_no_object_store(environment: dict[str, str]) -> None:
    [port] = free_ports(1)
    assert f"127.0.0.1:{port}" in failed_start(environment, OMNIVOICE_S3_ENDPOINT=f"http://127.0.0.1:{port}")


def test_wrong_credentials(environment: dict[str, str], s3: S3Server) -> None:
    line = failed_start(environment, AWS_SECRET_ACCESS_KEY="wrong-secret")
    assert "credentials" in line
    assert "wrong-secret" not in line


def test_no_checkpoint(environment: dict[str, str], tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    assert str(absent) in failed_start(environment, OMNIVOICE_SYNTHESIZER="engine", OMNIVOICE_MODEL=str(absent))


def test_checkpoint_without_weights(environment: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    line = failed_start(environment, OMNIVOICE_SYNTHESIZER="engine", OMNIVOICE_MODEL=str(tmp_path))
    assert str(tmp_path) in line or "config.json" in line


def test_fp8_without_a_gpu(environment: dict[str, str]) -> None:
    engine = {"OMNIVOICE_SYNTHESIZER": "engine", "OMNIVOICE_MODEL": str(CHECKPOINT), "OMNIVOICE_DEVICE": "cpu"}
    assert "fp8: needs CUDA, not cpu" in failed_start(environment, **engine, OMNIVOICE_FP8="1")


def test_a_taken_port_of_metrics_is_named(environment: dict[str, str]) -> None:
    port = str(urlsplit(environment["OMNIVOICE_REDIS_URL"]).port)  # Redis has it
    line = failed_start(environment, OMNIVOICE_WORKER_METRICS_PORT=port)
    assert line.startswith("OMNIVOICE_WORKER_METRICS_PORT: ")
    assert port in line


def test_settings_are_printed_without_secrets(environment: dict[str, str], tmp_path: Path) -> None:
    url = environment["OMNIVOICE_REDIS_URL"] + "?password="
    with run_worker(environment, tmp_path / "worker.log", redis_url=url) as worker:
        text = worker.log_file.read_text()
        [settings] = [line["settings"] for line in worker.lines() if "settings" in line]
    assert settings["OMNIVOICE_SYNTHESIZER"] == "tone"
    assert settings["OMNIVOICE_REDIS_URL"].endswith("password=***")
    assert environment["AWS_SECRET_ACCESS_KEY"] not in text


def test_a_start_warns_of_nothing_and_tells_of_root_in_one_line(environment: dict[str, str], tmp_path: Path) -> None:
    with run_worker(environment, tmp_path / "worker.log") as worker:
        lines = worker.lines()
        assert len(lines) == len((tmp_path / "worker.log").read_text().splitlines())
    assert {line["level"] for line in lines} == {"info"}
    assert sum("root" in str(line["event"]) for line in lines) == (os.geteuid() == 0)
