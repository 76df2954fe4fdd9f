"""The project as a whole: what is tracked, and that its documents say what is true."""

from __future__ import annotations

import configparser
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from api.keys import load_keys
from infra.local import services
from worker.jobs.settings import ENVIRONMENT_PREFIX, Settings

CHECKOUT = Path(__file__).parents[2]
MAX_TREE_BYTES = 45 * 2**20
MAX_FILE_BYTES = 20 * 2**20
README = (CHECKOUT / "README.md").read_text(encoding="utf-8")


def tracked_files() -> list[Path]:
    """What git tracks and what it would take next: the tree that travels to other machines."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    paths = [CHECKOUT / name for name in listed.split("\0") if name]
    return [path for path in paths if path.is_file()]


@pytest.mark.skipif(not (CHECKOUT / ".git").exists(), reason="a copy without git, as GPU machines get it")
def test_tree_is_small_enough_to_travel() -> None:
    sizes = {path: path.stat().st_size for path in tracked_files()}
    assert CHECKOUT / "pyproject.toml" in sizes
    largest = sorted(sizes, key=sizes.__getitem__, reverse=True)[:5]
    told = ", ".join(f"{path.relative_to(CHECKOUT)} {sizes[path] / 2**20:.1f} MiB" for path in largest)
    assert sum(sizes.values()) <= MAX_TREE_BYTES, told
    assert sizes[largest[0]] <= MAX_FILE_BYTES, told


def test_images_and_readme_have_the_environment_of_the_local_stack() -> None:
    """How processes take memory: set in three places, since images know no `infra`."""
    environment = " ".join(f"{name}={value}" for name, value in services.ALLOCATOR.items())
    for name in ("api", "worker"):
        assert f"ENV {environment}\n" in (CHECKOUT / "infra" / "docker" / f"{name}.Dockerfile").read_text("utf-8")
    assert f"\n{environment}\n" in README


def test_readme_names_every_setting_and_no_other() -> None:
    table = re.findall(rf"^\| `{ENVIRONMENT_PREFIX}([A-Z0-9_]+)` \|", README, re.MULTILINE)
    assert len(table) == len(set(table))
    assert set(table) == {name.upper() for name in Settings.model_fields}


def test_readme_names_the_defaults_of_the_settings() -> None:
    rows = re.findall(rf"^\| `{ENVIRONMENT_PREFIX}([A-Z0-9_]+)` \| `([^`]*)` \|", README, re.MULTILINE)
    assert rows
    for name, default in rows:
        value = Settings.model_fields[name.lower()].default
        assert default == (f"{int(value)}" if isinstance(value, bool) else f"{value}"), name


def test_the_keys_file_of_the_readme_is_one(tmp_path: Path) -> None:
    [example] = re.findall(r"^```json\n(.*?)^```$", README, re.MULTILINE | re.DOTALL)
    path = tmp_path / "keys.json"
    path.write_text(example)
    assert [key.name for key in load_keys(str(path)).keys] == ["alice"]


def test_make_targets_of_the_documents_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (CHECKOUT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    for document in ("README.md", "CONTRIBUTING.md", "SECURITY.md"):
        named = re.findall(r"(?:^|`)make ([a-z][a-z-]*)", (CHECKOUT / document).read_text("utf-8"), re.MULTILINE)
        assert set(named) <= targets, document


def test_paths_of_the_documents_exist() -> None:
    for document in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "tests/README.md"):
        text = (CHECKOUT / document).read_text(encoding="utf-8")
        named = re.findall(r"`((?:tests|infra|api|worker|omnivoice|checkpoints)/[\w./-]*)(?:::(\w+))?`", text)
        for path, test in named:
            assert (CHECKOUT / path).exists(), f"{document}: {path}"
            if test:
                assert f"def {test}(" in (CHECKOUT / path).read_text(encoding="utf-8"), f"{document}: {path}::{test}"


def test_every_fault_has_a_test() -> None:
    text = (CHECKOUT / "tests/README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+) \| (.+) \|$", text, re.MULTILINE)[2:]
    assert len(rows) >= 30
    for fault, tests in rows:
        assert re.search(r"`tests/[\w./-]+\.py::\w+`", tests), fault


def test_lock_pins_every_direct_dependency() -> None:
    lines = (CHECKOUT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", pin) for pin in pins)  # no path, no host, no range
    pinned = {canonical(pin.partition("==")[0]) for pin in pins}
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wanted = [
        *project["dependencies"],
        *(item for extra in project["optional-dependencies"].values() for item in extra),
    ]
    names = {canonical(re.split(r"[\[<>=~! ;]", item)[0]) for item in wanted}
    assert names - {canonical(project["name"])} <= pinned


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_import_contract_lists_every_module_of_the_worker() -> None:
    contracts = configparser.ConfigParser()
    contracts.read(CHECKOUT / ".importlinter", encoding="utf-8")
    listed = contracts["importlinter:contract:api-and-worker-apart"]["forbidden_modules"].split()
    modules = {f"worker.{path.stem}" for path in (CHECKOUT / "worker").glob("*.py") if path.stem != "__init__"}
    packages = {f"worker.{path.parent.name}" for path in (CHECKOUT / "worker").glob("*/__init__.py")}
    assert set(listed) == modules | packages - {"worker.jobs"}


def test_wheel_leaves_the_checkpoint_and_the_local_stack_out() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    packages = project["tool"]["setuptools"]["packages"]["find"]["include"]
    assert not any(pattern.startswith(("checkpoints", "infra", "tests")) for pattern in packages)
    assert (CHECKOUT / "checkpoints" / "demo" / "README.md").is_file()
