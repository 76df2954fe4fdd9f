"""W3C Trace Context: the `traceparent` header, by which one trace is followed from a client to a worker's log.

https://www.w3.org/TR/trace-context/: `00-<trace id, 32 hex>-<span id, 16 hex>-<flags, 2 hex>`, in lower case.
"""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass

_TRACEPARENT = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")
_INVALID_VERSION = "ff"


@dataclass(frozen=True, slots=True)
class TraceContext:
    """A trace and the span in it that stands for one call. `flags` are the caller's: 01 says that it records."""

    trace_id: str
    span_id: str
    flags: str = "00"

    @classmethod
    def parse(cls, header: str | None) -> TraceContext | None:
        """None for a header that is none. The standard wants it ignored then, not refused.

        Of a version after 00 the first four fields count, and more may follow them.
        """
        found = _TRACEPARENT.fullmatch((header or "").strip())
        if found is None:
            return None
        version, trace_id, span_id, flags, rest = found.groups()
        has_ids = trace_id.strip("0") and span_id.strip("0")
        is_known = version != _INVALID_VERSION and not (version == "00" and rest)
        return cls(trace_id, span_id, flags) if has_ids and is_known else None

    @classmethod
    def continued(cls, header: str | None) -> TraceContext:
        """A new span, in the trace of a caller's header or in a new one."""
        caller = cls.parse(header)
        span_id = _random_hex(8)
        return cls(_random_hex(16), span_id) if caller is None else cls(caller.trace_id, span_id, caller.flags)

    def to_header(self) -> str:
        return f"00-{self.trace_id}-{self.span_id}-{self.flags}"


def trace_id_of(traceparent: str | None) -> str | None:
    """The trace of a stored `traceparent`; None for a record that has none."""
    trace = TraceContext.parse(traceparent)
    return None if trace is None else trace.trace_id


def _random_hex(num_bytes: int) -> str:
    """Never all zeros, which would be no id."""
    return secrets.token_hex(num_bytes - 1) + f"{1 + secrets.randbelow(255):02x}"
