"""Names are unique, sortable, and keep what clients choose out of Redis's and the store's keys."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from worker.jobs import names


def test_ids_are_unique_and_sort_by_age() -> None:
    ids = [names.new_job_id() for _ in range(2000)]
    assert len(set(ids)) == len(ids)
    assert all(names.is_job_id(job_id) for job_id in ids)
    stamps = [job_id[4:16] for job_id in ids]
    assert stamps == sorted(stamps)


@pytest.mark.parametrize("text", ["", "job_", "../etc", "job_" + "g" * 32, "job_" + "0" * 33, "job_" + "0" * 32 + "\n"])
def test_what_is_no_id_is_told_apart(text: str) -> None:
    assert not names.is_job_id(text)


@given(st.text(), st.text(), st.text(), st.text())
def test_idempotency_keys_differ_with_owner_and_key(owner: str, key: str, other_owner: str, other_key: str) -> None:
    first = names.idempotency_key("p", owner, key)
    assert first.isascii()
    assert (first == names.idempotency_key("p", other_owner, other_key)) == ((owner, key) == (other_owner, other_key))


def test_each_lease_has_an_object_of_its_own() -> None:
    assert names.audio_key("job_0", 1, "wav") != names.audio_key("job_0", 2, "wav")
