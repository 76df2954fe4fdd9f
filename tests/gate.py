"""A TCP relay that a test can close: the server behind it is then gone, for as long as the test wants."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator


class Gate:
    """Relays connections to `port` on loopback. While it is closed, connections are cut and new ones refused."""

    def __init__(self, port: int) -> None:
        self._target = ("127.0.0.1", port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._is_open = True
        self.port: int = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        with self._lock:
            self._is_open = False
            for connection in self._sockets:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def open(self) -> None:
        with self._lock:
            self._is_open = True

    def end(self) -> None:
        self.close()
        self._listener.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # the listener is closed at the end
            while True:
                client, _ = self._listener.accept()
                with self._lock:
                    if not self._is_open:
                        client.close()
                        continue
                    server = socket.create_connection(self._target)
                    self._sockets |= {client, server}
                for source, sink in ((client, server), (server, client)):
                    threading.Thread(target=self._relay, args=(source, sink), daemon=True).start()

    def _relay(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for connection in (source, sink):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        with self._lock:
            self._sockets.discard(source)
        source.close()


@contextlib.contextmanager
def gate_to(port: int) -> Iterator[Gate]:
    gate = Gate(port)
    try:
        yield gate
    finally:
        gate.end()
