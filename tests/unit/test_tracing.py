"""The `traceparent` header: what is one, and what is made of it."""

from __future__ import annotations

import re

import pytest

from worker.jobs.tracing import TraceContext, trace_id_of

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"  # both from the standard's own example


def test_the_standards_example_is_read() -> None:
    assert TraceContext.parse(f"00-{TRACE}-{SPAN}-01") == TraceContext(TRACE, SPAN, "01")


@pytest.mark.parametrize("header", [f"01-{TRACE}-{SPAN}-01", f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like"])
def test_a_later_version_is_read_as_far_as_it_is_known(header: str) -> None:
    assert TraceContext.parse(header) == TraceContext(TRACE, SPAN, "01")


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "hello",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-01-more",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE[:-1]}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}-0x",
        f"00-{TRACE}-{SPAN}-01\n00-{TRACE}-{SPAN}-01",
    ],
)
def test_what_is_no_header_starts_a_new_trace(header: str | None) -> None:
    assert TraceContext.parse(header) is None
    assert trace_id_of(header) is None
    made = TraceContext.continued(header)
    assert made.trace_id != TRACE
    assert TraceContext.parse(made.to_header()) == made


def test_a_trace_goes_on_in_a_span_of_its_own() -> None:
    ours = TraceContext.continued(f"00-{TRACE}-{SPAN}-01")
    assert (ours.trace_id, ours.flags) == (TRACE, "01")
    assert ours.span_id != SPAN
    assert re.fullmatch(r"[0-9a-f]{16}", ours.span_id)
    assert trace_id_of(ours.to_header()) == TRACE
