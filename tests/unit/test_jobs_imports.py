"""The contract between API and worker stays light: neither torch nor Flask comes with it."""

from __future__ import annotations

import pkgutil
import subprocess
import sys

import worker.jobs

HEAVY = ("torch", "transformers", "tokenizers", "flask", "gunicorn", "worker.synthesizers")


def test_importing_the_jobs_loads_neither_torch_nor_flask() -> None:
    modules = [f"worker.jobs.{module.name}" for module in pkgutil.iter_modules(worker.jobs.__path__)]
    assert "worker.jobs.ledger" in modules
    program = f"import {', '.join(modules)}, sys; print(sorted(set({HEAVY!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
