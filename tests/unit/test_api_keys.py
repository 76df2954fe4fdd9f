"""API keys: the file, the comparison, and who may be reached without one."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from api.access import check_exposure, is_loopback, parse_origins
from api.keys import ApiKey, KeyRing, load_keys, new_key
from worker.jobs.errors import StartupError
from worker.jobs.settings import Settings


def _entry(name: str, token: str) -> dict[str, str]:
    return {"name": name, "sha256": hashlib.sha256(token.encode()).hexdigest()}


@pytest.mark.parametrize("wrapped", [True, False])
def test_json_file_gives_each_key_its_owner(tmp_path: Path, wrapped: bool) -> None:
    entries = [_entry("anna", "token-a"), _entry("ben", "token-b")]
    path = tmp_path / "keys.json"
    path.write_text(json.dumps({"keys": entries} if wrapped else entries))
    ring = load_keys(str(path))
    assert not ring.is_open
    assert [ring.owner_of(token) for token in ("token-a", "token-b", "token-c", "", "tökén")] == [
        "anna",
        "ben",
        None,
        None,
        None,
    ]


def test_toml_file(tmp_path: Path) -> None:
    entry = _entry("anna", "token-a")
    path = tmp_path / "keys.toml"
    path.write_text(f'[[keys]]\nname = "anna"\nsha256 = "{entry["sha256"]}"\n')
    assert load_keys(str(path)).owner_of("token-a") == "anna"


def test_a_hash_is_no_key(tmp_path: Path) -> None:
    ring = KeyRing((ApiKey(**_entry("anna", "token-a")),))
    assert ring.owner_of(ring.keys[0].sha256) is None


@pytest.mark.parametrize(
    ("content", "named"),
    [
        ("{", "cannot be parsed"),
        ('{"keys": []}', "holds no key"),
        ("[]", "holds no key"),
        ('{"keys": {}, "more": 1}', "must be"),
        ('"x"', "must be"),
        ('[{"name": "a"}]', "key 1: must have the fields"),
        ('[{"name": "a", "sha256": "00"}]', "key 1: sha256"),
        (json.dumps([_entry("a b", "t")]), "key 1: name"),
        (json.dumps([{**_entry("a", "t"), "rate": 1}]), "no other"),
        (json.dumps([_entry("a", "t"), _entry("a", "u")]), "given twice: a"),
    ],
)
def test_a_bad_file_is_refused_in_one_line(tmp_path: Path, content: str, named: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(content)
    with pytest.raises(StartupError) as caught:
        load_keys(str(path))
    message = str(caught.value)
    assert "OMNIVOICE_API_KEYS_FILE" in message
    assert named in message
    assert "\n" not in message


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="No such file"):
        load_keys(str(tmp_path / "none.json"))


def test_new_keys_are_long_differ_and_match_their_entry() -> None:
    first, entry = new_key("anna")
    second, _ = new_key("anna")
    assert first != second
    assert len(first) >= 43  # 256 bits in base64
    assert KeyRing((entry,)).owner_of(first) == "anna"
    assert first not in entry.sha256


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("LOCALHOST.", True),
        ("api.localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.example.org", False),
        ("127.0.0.1.example.org", False),
        ("notlocalhost", False),
        ("", False),
    ],
)
def test_loopback(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected


def test_only_loopback_is_served_without_keys() -> None:
    key = KeyRing((ApiKey(**_entry("anna", "t")),))
    check_exposure(Settings(api_host="127.0.0.1"), KeyRing())
    check_exposure(Settings(api_host="0.0.0.0"), key)
    check_exposure(Settings(api_host="0.0.0.0", insecure=True), KeyRing())
    with pytest.raises(StartupError, match=r"OMNIVOICE_API_HOST.*OMNIVOICE_INSECURE=1"):
        check_exposure(Settings(api_host="0.0.0.0"), KeyRing())


def test_no_key_may_take_the_name_of_the_open_service() -> None:
    with pytest.raises(StartupError, match="'local'"):
        check_exposure(Settings(), KeyRing((ApiKey(**_entry("local", "t")),)))


def test_origins() -> None:
    assert parse_origins("") == frozenset()
    assert parse_origins(" https://A.example , http://localhost:3000,") == {
        "https://a.example",
        "http://localhost:3000",
    }


@pytest.mark.parametrize("text", ["*", "example.org", "https://example.org/", "https://ok.example, ftp://x"])
def test_what_no_browser_sends_is_no_origin(text: str) -> None:
    with pytest.raises(StartupError, match="OMNIVOICE_CORS_ORIGINS"):
        parse_origins(text)
