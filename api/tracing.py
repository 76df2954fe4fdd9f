"""Every request has a W3C trace: the caller's (`traceparent`), or a new one. The answer names it in `traceresponse`."""

from __future__ import annotations

from flask import Flask, Response, g, has_request_context, request

from worker.jobs.tracing import TraceContext


def register(app: Flask) -> None:
    """Before anything that logs."""

    @app.before_request
    def begin() -> None:
        g.trace = TraceContext.continued(request.headers.get("traceparent"))

    @app.after_request
    def name_it(response: Response) -> Response:
        if "trace" in g:
            response.headers["traceresponse"] = g.trace.to_header()
        return response


def current() -> TraceContext | None:
    """The trace of the request that is being answered."""
    return g.get("trace") if has_request_context() else None
