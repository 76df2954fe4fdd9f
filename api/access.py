"""Who may call from where: bearer keys, the Host and Origin guard of a service without keys, and CORS."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from urllib.parse import urlsplit

from flask import Flask, Response, g, request

from api.keys import KeyRing
from api.problems import ProblemError
from worker.jobs.errors import StartupError
from worker.jobs.settings import Settings

GUARDED_PREFIXES = ("/v1/", "/metrics")
"""A key is asked for below these paths only: liveness, readiness, the specification and its page are open."""
OPEN_OWNER = "local"
"""Owner of jobs made while no key is configured. No key may carry this name."""
_ORIGIN = re.compile(r"https?://[^/\s?#@]+")
_UNSAFE_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_ALLOWED_METHODS = "GET, POST, DELETE"
_ALLOWED_HEADERS = "Authorization, Content-Type, Idempotency-Key, Prefer, traceparent"
_EXPOSED_HEADERS = "Location, Preference-Applied, Retry-After, traceresponse, WWW-Authenticate"
_PREFLIGHT_SECONDS = 600


def is_loopback(host: str) -> bool:
    """Whether `host`, a name or an address without port, can only mean this machine."""
    name = host.strip("[]").rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):  # RFC 6761 keeps the whole domain for loopback
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _host_name(header: str) -> str:
    """The name in a Host header, without its port; empty for one that cannot be parsed."""
    try:
        return urlsplit(f"//{header}").hostname or ""
    except ValueError:
        return ""


def check_exposure(settings: Settings, keys: KeyRing) -> None:
    """Refuse to serve other machines without a key. Raises `StartupError`."""
    if any(key.name == OPEN_OWNER for key in keys.keys):
        raise StartupError(f"OMNIVOICE_API_KEYS_FILE: the name {OPEN_OWNER!r} is kept for a service without keys")
    if keys.is_open and not settings.insecure and not is_loopback(settings.api_host):
        raise StartupError(
            f"OMNIVOICE_API_HOST: {settings.api_host} can be reached from other machines, but no API key is configured;"
            " set OMNIVOICE_API_KEYS_FILE, or OMNIVOICE_INSECURE=1 to let anyone in"
        )


def parse_origins(text: str) -> frozenset[str]:
    """Origins (`https://example.org`, with a port if it is not the scheme's) from a comma-separated list.

    Raises `StartupError`: a `*` or a path would never equal what a browser sends and so fail in silence.
    """
    origins = frozenset(part.strip().lower() for part in text.split(",") if part.strip())
    for origin in sorted(origins):
        if not _ORIGIN.fullmatch(origin):
            raise StartupError(f"OMNIVOICE_CORS_ORIGINS: {origin!r} is not an origin like https://example.org")
    return origins


@dataclass(frozen=True, slots=True)
class Access:
    """The rules of one application, applied around every request."""

    keys: KeyRing
    origins: frozenset[str]
    local_only: bool
    """True while anyone on this machine may call: then names and pages of other machines must not."""

    @classmethod
    def from_settings(cls, settings: Settings, keys: KeyRing) -> Access:
        return cls(keys, parse_origins(settings.cors_origins), keys.is_open and not settings.insecure)

    def register(self, app: Flask) -> None:
        app.before_request(self._admit)
        app.after_request(self._add_cors_headers)

    def _admit(self) -> Response | None:
        """Answer a preflight; raise `ProblemError` for who may not call; else note the owner in `g.owner`."""
        if self.local_only:
            self._refuse_other_machines()
        if request.method == "OPTIONS" and "Access-Control-Request-Method" in request.headers:
            return Response(status=204)
        if request.path.startswith(GUARDED_PREFIXES):
            g.owner = OPEN_OWNER if self.keys.is_open else self._owner()
        return None

    def _refuse_other_machines(self) -> None:
        """Against web pages: one whose name was rebound to 127.0.0.1 shows in Host, one that posts a form in Origin."""
        if not is_loopback(_host_name(request.headers.get("Host", ""))):
            raise ProblemError(421, "without API keys this service answers to localhost and loopback addresses only")
        origin = request.headers.get("Origin")
        if origin is None or request.method not in _UNSAFE_METHODS:
            return
        if origin.lower() not in self.origins and origin.lower() != request.host_url.rstrip("/").lower():
            raise ProblemError(403, "this origin is not allowed; OMNIVOICE_CORS_ORIGINS lists those that are")

    def _owner(self) -> str:
        credentials = request.authorization
        token = credentials.token if credentials is not None and credentials.type == "bearer" else None
        if token is None:
            challenge = 'Bearer realm="omnivoice"'
            raise ProblemError(
                401, "an API key is needed: Authorization: Bearer …", headers={"WWW-Authenticate": challenge}
            )
        owner = self.keys.owner_of(token)
        if owner is None:
            challenge = 'Bearer realm="omnivoice", error="invalid_token"'
            raise ProblemError(401, "this API key is not known", headers={"WWW-Authenticate": challenge})
        return owner

    def _add_cors_headers(self, response: Response) -> Response:
        if not self.origins:
            return response
        response.vary.add("Origin")  # a shared cache must not give one origin's answer to another
        origin = request.headers.get("Origin", "")
        if origin.lower() not in self.origins:
            return response
        response.headers["Access-Control-Allow-Origin"] = origin
        response.headers["Access-Control-Expose-Headers"] = _EXPOSED_HEADERS
        if request.method == "OPTIONS":
            response.headers["Access-Control-Allow-Methods"] = _ALLOWED_METHODS
            response.headers["Access-Control-Allow-Headers"] = _ALLOWED_HEADERS
            response.headers["Access-Control-Max-Age"] = str(_PREFLIGHT_SECONDS)
        return response
