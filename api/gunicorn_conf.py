"""gunicorn's configuration, from the same settings as the application's. `python -m api` adds the bound socket."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from gunicorn import util

from api.app import STOPPING
from api.logs import logging_config
from api.metrics import remove_shared
from api.problems import ProblemError
from worker.jobs.settings import Settings

PR_SET_PDEATHSIG = 1
"""prctl(2): the signal that a process gets when its parent dies."""
ORPHAN_SECONDS = 3.0
"""What a worker whose master is gone has left for its clients. It keeps the port, and `python -m api` waits for it."""
_LOOK_SECONDS = 0.25

_settings = Settings.from_environment(os.environ)
_SHARED_MEMORY = Path("/dev/shm")

worker_class = "gthread"
workers = _settings.api_workers
threads = _settings.api_threads
keepalive = 15
# A thread that serves a long poll is told to end it (below); the rest needs far less than this.
graceful_timeout = 30
# On a disk the heartbeat's fchmod can block for as long as the disk does, and the arbiter kills a healthy worker.
worker_tmp_dir = str(_SHARED_MEMORY) if _SHARED_MEMORY.is_dir() else None
control_socket_disable = True
proc_name = "omnivoice-api"
logconfig_dict = logging_config(_settings.log_level)


def _write_problem(client: Any, status: int, reason: str, _: str) -> None:
    """gunicorn's own answer, to what is no HTTP: like every other of the API, and without what the client sent."""
    answer = ProblemError(status, "the request is no HTTP that this server understands", title=reason).response()
    head = f"HTTP/1.1 {status} {reason}\r\nConnection: close\r\n{answer.headers}"
    util.write_nonblock(client, head.encode("latin1") + answer.get_data())


util.write_error = _write_problem  # there is no setting for it


def post_fork(_server: Any, worker: Any) -> None:
    """Tie a worker to its master: left alone it keeps the port, accepts nothing, and no new master can start."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    threading.Thread(target=_end_as_orphan, args=(worker.ppid,), name="orphan", daemon=True).start()


def _end_as_orphan(master: int) -> None:
    """Whatever the worker does when its master is gone: load the application, or wait for a client's body."""
    while os.getppid() == master:
        time.sleep(_LOOK_SECONDS)
    time.sleep(ORPHAN_SECONDS)
    os._exit(1)


def post_worker_init(worker: Any) -> None:
    """Let SIGTERM end long polls at once: each would hold the stop for as long as its client asked to wait."""
    stopping = worker.wsgi.extensions[STOPPING]
    leave = signal.getsignal(signal.SIGTERM)

    def stop(signum: int, frame: FrameType | None) -> None:
        stopping.set()
        if callable(leave):
            leave(signum, frame)

    signal.signal(signal.SIGTERM, stop)
    signal.siginterrupt(signal.SIGTERM, False)


def on_exit(_server: Any) -> None:
    remove_shared()
