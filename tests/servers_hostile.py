"""Servers on loopback that answer with anything, slowly, or not at all."""

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

type Talk = Callable[[socket.socket, str], None]
"""Answers one request, whose head it is given; the connection is closed afterwards."""


@dataclass
class Hostile:
    port: int
    heads: list[str] = field(default_factory=list)
    sent: int = 0
    came: int = 0
    """Bytes of the last request's body that came with its head."""
    stopped: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def pour(self, connection: socket.socket, part: bytes, every: float = 0.0) -> None:
        """Send without end, until nobody listens."""
        with suppress(OSError):
            while not self.stopped.wait(every):
                self.sent += connection.send(part)


@contextmanager
def talking(talk: Callable[[Hostile, socket.socket, str], None]) -> Iterator[Hostile]:
    listener = socket.create_server(("127.0.0.1", 0))
    server = Hostile(listener.getsockname()[1])
    threads = []

    def serve(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            head = b""
            while b"\r\n\r\n" not in head:
                part = connection.recv(65536)
                if not part:
                    return
                head += part
            head, _, body = head.partition(b"\r\n\r\n")
            server.heads.append(head.decode("latin-1"))
            server.came = len(body)
            talk(server, connection, server.heads[-1])

    def accept() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threads.append(threading.Thread(target=serve, args=(connection,), daemon=True))
            threads[-1].start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    try:
        yield server
    finally:
        server.stopped.set()
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        accepting.join(5)
        for thread in threads:
            thread.join(5)


def silent(server: Hostile, connection: socket.socket, head: str) -> None:
    server.stopped.wait(60)


def answer(status: str, *headers: str, body: bytes = b"") -> Talk:
    lines = [f"HTTP/1.1 {status}", *headers, "Connection: close", "", ""]

    def talk(server: Hostile, connection: socket.socket, head: str) -> None:
        connection.sendall("\r\n".join(lines).encode() + body)

    return talk


def trickling(every: float = 0.05, part: bytes = b"x", parts: int | None = None) -> Talk:
    """A body of so many parts, or without end."""

    def talk(server: Hostile, connection: socket.socket, head: str) -> None:
        length = 2**40 if parts is None else parts * len(part)
        asked = re.search(r"range: bytes=(\d+)-(\d+)", head.lower())
        status = b"HTTP/1.1 200 OK\r\n"
        if asked:
            last = min(int(asked[2]), length - 1)
            status = "HTTP/1.1 206 Partial\r\nContent-Range: bytes "
            status = f"{status}{asked[1]}-{last}/{length}\r\n".encode()
        connection.sendall(
            status + b'ETag: "a"\r\nx-goog-generation: 1\r\n'
            b"Last-Modified: Wed, 18 Nov 2026 12:00:00 GMT\r\nContent-Type: text/plain\r\n"
            + f"Content-Length: {length}\r\n\r\n".encode()
        )
        if head.startswith("HEAD"):
            return
        if parts is None:
            server.pour(connection, part, every)
            return
        for _ in range(parts):
            server.stopped.wait(every)
            connection.sendall(part)

    return talk


def absorbing(part: int, every: float) -> Talk:
    """Takes a body slowly, then says yes."""

    def talk(server: Hostile, connection: socket.socket, head: str) -> None:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, part)
        if "100-continue" in head.lower():
            connection.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        missing = int(head.lower().partition("content-length:")[2].split()[0]) - server.came
        while missing > 0 and not server.stopped.wait(every):
            missing -= len(connection.recv(min(part, missing)))
        answer = b'{"generation": "1"}' if head.startswith("POST") else b""
        connection.sendall(
            b'HTTP/1.1 200 OK\r\nETag: "a"\r\nConnection: close\r\n'
            + f"Content-Length: {len(answer)}\r\n\r\n".encode()
            + answer
        )

    return talk
