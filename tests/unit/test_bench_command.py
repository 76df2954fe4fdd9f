from __future__ import annotations

import pytest

from bench.command import shown_command


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ([], "python -m bench.x"),
        (["--out", "/tmp/a b.json", "--quick"], "python -m bench.x --out OUT --quick"),
        (["--out=/home/me/x.json", "--modes=bf16,fp8"], "python -m bench.x --out OUT --modes bf16,fp8"),
        (["listen", "/tmp/accuracy"], "python -m bench.x listen PATH"),
        (["--max-batch-tokens", "512", "results/x.json"], "python -m bench.x --max-batch-tokens 512 results/x.json"),
        (["--state-folder", "/srv/state"], "python -m bench.x --state-folder STATE_FOLDER"),
    ],
)
def test_a_command_is_shown_without_paths_of_the_machine(arguments: list[str], shown: str) -> None:
    assert shown_command("bench.x", arguments) == shown
