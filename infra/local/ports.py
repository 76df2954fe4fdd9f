"""Finding TCP ports that nothing listens on."""

from __future__ import annotations

import errno
import random
import socket
from collections.abc import Collection, Mapping, Sequence

from infra.local.errors import LocalError

# Below the range from which Linux takes the ports of outgoing connections (32768 upwards): from there, a port that
# is free now may be somebody's connection by the time that a server binds it, or after that server's restart.
LOWEST, HIGHEST = 20_000, 32_000
MAX_TRIES = 200


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen there now (port 0: on any port).

    Raises `LocalError` where `host` is not an address of this machine.
    """
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        probe = socket.socket(family, kind)
    except OSError as error:
        raise LocalError(f"{host}: not an address of this machine ({error.strerror or error})") from None
    with probe:
        # As servers do: without it, a port counts as taken for a minute after its last server has stopped.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRNOTAVAIL:
                raise LocalError(f"{host}: not an address of this machine") from None
            return False
    return True


def check_distinct(configured: Mapping[str, int], servers: Mapping[str, int]) -> None:
    """Raises `LocalError` where a variable's port is another one's, or that of a server of the stack; 0 is nobody's."""
    users = {port: f"the port of this stack's {name}" for name, port in servers.items()}
    for variable, port in configured.items():
        if port in users:
            raise LocalError(f"{variable}: {port} is {users[port]} too; choose another")
        if port:
            users[port] = f"that of {variable}"


def reserve(port: int) -> bool:
    """Keep a port of 127.0.0.1 for this process and the servers that it starts, until it ends; False where it is taken.

    Bound and not listened on, a port is free for servers, which bind with SO_REUSEADDR, and nobody else who calls this:
    two processes that look for ports at one time never find the same.
    """
    holder = socket.socket()
    try:
        holder.bind(("127.0.0.1", port))
    except OSError:
        holder.close()
        return False
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.detach()  # open for as long as this process lives; programs that it starts do not inherit it
    return True


def reserve_any(excluded: Collection[int] = ()) -> int:
    """A port that was free, reserved."""
    for _ in range(MAX_TRIES):
        port = random.randint(LOWEST, HIGHEST)
        if port not in excluded and reserve(port):
            return port
    raise LocalError(f"no free TCP port found from {LOWEST} to {HIGHEST} on 127.0.0.1")


def choose(names: Sequence[str], preferred: Mapping[str, int]) -> dict[str, int]:
    """A free port for each name, the preferred one where it is free, else a reserved one; no port twice."""
    chosen: dict[str, int] = {}
    for name in names:
        port = preferred.get(name)
        if port is None or port in chosen.values() or not is_free(port):
            port = reserve_any({*chosen.values(), *preferred.values()})
        chosen[name] = port
    return chosen
