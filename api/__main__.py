"""`python -m api`: check everything, then become gunicorn. `python -m api new-key NAME`: make an API key.

A check that fails is one line on standard error and exit status 2.
"""

from __future__ import annotations

import argparse
import errno
import json
import logging
import logging.config
import os
import socket
import struct
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, NoReturn

from api.access import check_exposure, parse_origins
from api.keys import load_keys, new_key
from api.logs import logging_config
from api.metrics import parse_readers, share_between_processes
from worker.jobs.errors import StartupError
from worker.jobs.settings import Settings
from worker.jobs.startup import check_redis, check_storage

FAILED_CHECK_STATUS = 2
PORT_PATIENCE_SECONDS = 5.0
"""A little more than the workers of a master that was killed keep its port (`gunicorn_conf.ORPHAN_SECONDS`)."""
_log = logging.getLogger("api")


def main(arguments: Sequence[str]) -> int:
    """Run the command line. Returns an exit status; does not return when it serves."""
    parser = argparse.ArgumentParser(prog="python -m api", description="Serve the HTTP API (settings: OMNIVOICE_*).")
    commands = parser.add_subparsers(dest="command")
    key_parser = commands.add_parser("new-key", help="print a new API key and its entry for OMNIVOICE_API_KEYS_FILE")
    key_parser.add_argument("name", help="owner of the jobs that are made with the key")
    options = parser.parse_args(arguments)
    try:
        if options.command == "new-key":
            return _print_new_key(options.name)
        _serve(*_prepare())
    except StartupError as error:
        sys.stderr.write(" ".join(str(error).split()) + "\n")
    return FAILED_CHECK_STATUS


def _print_new_key(name: str) -> int:
    try:
        token, entry = new_key(name)
    except ValueError as error:
        raise StartupError(f"new-key: {error}") from None
    sys.stdout.write(f"key (shown this once): {token}\n")
    sys.stdout.write(f'entry for "keys" in OMNIVOICE_API_KEYS_FILE: {json.dumps(asdict(entry))}\n')
    return 0


def _prepare() -> tuple[Settings, socket.socket]:
    """Check settings, keys, Redis and bucket, and take the port. Raises `StartupError`."""
    settings = Settings.from_environment(os.environ)
    keys = load_keys(settings.api_keys_file)
    check_exposure(settings, keys)
    parse_readers(settings, keys)
    parse_origins(settings.cors_origins)
    check_redis(settings)
    check_storage(settings)
    listener = _listen(settings.api_host, settings.api_port)
    _cut_off_silent_clients(listener, settings.api_client_seconds)
    return settings, listener


def _listen(host: str, port: int) -> socket.socket:
    """A bound socket that gunicorn inherits: between a check and a later bind, another process could take the port."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        listener = socket.socket(family, socket.SOCK_STREAM)
    except OSError as error:
        raise StartupError(f"OMNIVOICE_API_HOST: {host}: {error.strerror or error}") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        _bind(listener, address)
        listener.listen(socket.SOMAXCONN)
    except OSError as error:
        listener.close()
        raise StartupError(f"OMNIVOICE_API_PORT: cannot listen on {host} port {port}: {error.strerror}") from None
    listener.set_inheritable(True)
    return listener


def _cut_off_silent_clients(listener: socket.socket, seconds: float) -> None:
    """A client that stops in the middle of its request, or never reads, would hold its thread for ever. gunicorn has no
    time limit for that, but every connection inherits the listener's options."""
    timeval = struct.pack("@ll", int(seconds), int(seconds % 1 * 1_000_000))
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        listener.setsockopt(socket.SOL_SOCKET, option, timeval)


def _bind(listener: socket.socket, address: Any) -> None:
    end = time.monotonic() + PORT_PATIENCE_SECONDS
    while True:
        try:
            return listener.bind(address)
        except OSError as error:
            if error.errno != errno.EADDRINUSE or time.monotonic() > end:
                raise
        time.sleep(0.1)


def _serve(settings: Settings, listener: socket.socket) -> NoReturn:
    """Replace this process by gunicorn, which so receives its signals."""
    logging.config.dictConfig(logging_config(settings.log_level))
    host, port = listener.getsockname()[:2]
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    _log.info("starting", extra={"fields": {"address": address, "settings": settings.describe()}})
    share_between_processes(settings)
    command = [sys.executable, "-m", "gunicorn", "--config", "python:api.gunicorn_conf"]
    command += ["--bind", f"fd://{listener.fileno()}", "api.wsgi:build()"]
    sys.stderr.flush()
    os.execv(sys.executable, command)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
