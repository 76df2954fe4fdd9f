"""The address of a primary that Sentinels know by its name."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from urllib.parse import quote, unquote

HOST = re.compile(r"([A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+\])(?::(\d{1,5}))?")
SENTINEL_FORM = "redis+sentinel://[[USER]:PASSWORD@]HOST[:PORT][,HOST[:PORT]…]/SERVICE[/DB]"
_SCHEME = "redis+sentinel://"
_URL = re.compile(r"(?:([^:/?#@]*):([^/?#]*)@)?([^/?#@]+)/([A-Za-z0-9._-]+)(?:/(\d+))?")
_DEFAULT_PORT = 26379


@dataclass(frozen=True)
class SentinelUrl:
    """Sentinels, the name that they know the primary by, and what its servers ask for; Sentinels have no password."""

    sentinels: tuple[tuple[str, int], ...]
    service: str
    db: int
    username: str | None
    password: str | None = field(repr=False)

    @classmethod
    def parse(cls, url: str) -> SentinelUrl | None:
        """None for a URL of another scheme; ValueError (that does not quote it) for one that is not `SENTINEL_FORM`."""
        if not url.startswith(_SCHEME):
            return None
        found = _URL.fullmatch(url.removeprefix(_SCHEME))
        hosts = [HOST.fullmatch(host) for host in found[3].split(",")] if found else []
        sentinels = tuple((host[1].strip("[]"), int(host[2] or _DEFAULT_PORT)) for host in hosts if host)
        if not found or len(sentinels) < len(hosts) or not all(0 < port < 65_536 for _, port in sentinels):
            raise ValueError(f"must be {SENTINEL_FORM}, with no parameters behind it")
        username, password = (unquote(word) if word else None for word in (found[1], found[2]))
        return cls(sentinels, found[4], int(found[5] or 0), username, password)

    def as_kombu_writes_it(self) -> str:
        """A URL for each Sentinel, with semicolons between them; kombu takes `service` elsewhere (`master_name`)."""
        user, password = (quote(word or "", safe="") for word in (self.username, self.password))
        login = f"{user}:{password}@" if user or password else ""
        hosts = (f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in self.sentinels)
        return ";".join(f"sentinel://{login}{host}/{self.db}" for host in hosts)
