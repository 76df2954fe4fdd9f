"""Ports of the local stack: reserved ones are free for servers, and for nobody else who looks for a port."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from infra.local import ports
from infra.local.errors import LocalError

CHECKOUT = Path(__file__).parents[2]


def reserve_elsewhere(port: int) -> bool:
    """What another process is told, which ends then."""
    program = f"import sys; from infra.local import ports; sys.exit(not ports.reserve({port}))"
    return subprocess.run([sys.executable, "-c", program], cwd=CHECKOUT, check=False, timeout=60).returncode == 0


def test_a_reserved_port_is_free_for_servers_one_after_the_other() -> None:
    port = ports.reserve_any()
    for _ in range(2):
        with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port), timeout=5):
            assert not ports.is_free(port)
        assert ports.is_free(port)


def test_a_reserved_port_is_nobody_elses() -> None:
    port = ports.reserve_any()
    assert not ports.reserve(port)
    assert not reserve_elsewhere(port)


def test_a_port_is_free_again_once_its_process_has_ended() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        assert not reserve_elsewhere(port)
    assert reserve_elsewhere(port)
    assert reserve_elsewhere(port)


def test_what_is_chosen_is_preferred_or_reserved_and_none_twice() -> None:
    kept, taken = ports.reserve_any(), ports.reserve_any()
    with socket.create_server(("127.0.0.1", taken)):
        chosen = ports.choose(["a", "b", "c", "d"], {"a": kept, "b": kept, "c": taken})
    assert chosen["a"] == kept
    assert len({*chosen.values(), taken}) == 5
    assert not any(ports.reserve(port) for port in chosen.values())


@pytest.mark.parametrize(
    ("configured", "told"),
    [
        ({"API": 8080, "METRICS": 9090}, None),
        ({"API": 0, "METRICS": 0}, None),
        ({"API": 8080, "METRICS": 8080}, "METRICS: 8080 is that of API too"),
        ({"API": 6379, "METRICS": 0}, "API: 6379 is the port of this stack's redis too"),
    ],
)
def test_two_that_want_one_port_are_told_by_name(configured: dict[str, int], told: str | None) -> None:
    if told is None:
        ports.check_distinct(configured, {"redis": 6379, "s3": 8333})
        return
    with pytest.raises(LocalError, match=told):
        ports.check_distinct(configured, {"redis": 6379, "s3": 8333})
