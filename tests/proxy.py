"""A proxy on loopback that loses answers, refuses requests and counts them, as told."""

import http.client
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


class Action(Enum):
    PASS = "pass"
    # The server does what it was asked to, and nobody hears of it.
    LOSE_ANSWER = "lose the answer"
    LOSE_REQUEST = "lose the request"
    SLOW_DOWN = "slow down"
    FAIL = "fail"


@dataclass(frozen=True)
class Answer:
    """What the proxy says instead of the server, which hears nothing."""

    status: int
    body: str = ""


type Plan = Callable[[str, str], Action | Answer]
"""From method and path to what becomes of the request."""


@dataclass
class Proxy:
    endpoint: str
    plan: Plan = lambda method, path: Action.PASS
    keep_metadata: bool = True
    quote_etags: bool = True
    seen: list[str] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    """Of each request, names in lower case."""

    def count(self, method: str) -> int:
        return self.seen.count(method)


def once(method: str, action: Action | Answer) -> Plan:
    """A plan that meets the first request of this method only."""
    left = [action]
    return lambda asked, path: left.pop() if asked == method and left else Action.PASS


def always(method: str, action: Action | Answer) -> Plan:
    return lambda asked, path: action if asked == method else Action.PASS


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: "_Server"

    def handle_any(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        proxy = self.server.proxy
        proxy.seen.append(self.command)
        proxy.headers.append({name.lower(): value for name, value in self.headers.items()})
        match proxy.plan(self.command, self.path):
            case Answer(status=status, body=text):
                self._answer(status, [], text.encode())
            case Action.LOSE_REQUEST:
                self.close_connection = True
            case Action.LOSE_ANSWER:
                self._ask(body)
                self.close_connection = True
            case Action.SLOW_DOWN:
                self._refuse(503, "SlowDown")
            case Action.FAIL:
                self._refuse(500, "InternalError")
            case Action.PASS:
                self._answer(*self._ask(body))

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = handle_any  # noqa: N815

    def _ask(self, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        connection = http.client.HTTPConnection(self.server.upstream, timeout=30)
        try:
            connection.request(self.command, self.path, body, dict(self.headers.items()))
            response = connection.getresponse()
            return response.status, response.getheaders(), response.read()
        finally:
            connection.close()

    def _refuse(self, status: int, code: str) -> None:
        text = f"<Error><Code>{code}</Code><Message>on purpose</Message></Error>"
        self._answer(status, [], text.encode())

    def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers:
            if name.lower() == "etag" and not self.server.proxy.quote_etags:
                value = value.strip('"')
            if self._is_sent(name.lower()):
                self.send_header(name, value)
        if not any(name.lower() == "content-length" for name, _ in headers):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _is_sent(self, name: str) -> bool:
        if name.startswith("x-amz-meta-"):
            return self.server.proxy.keep_metadata
        return name not in {"transfer-encoding", "connection"}

    def log_message(self, *arguments: object) -> None:
        pass


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self, upstream: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.upstream = upstream
        self.proxy = Proxy(f"http://127.0.0.1:{self.server_address[1]}")

    def handle_error(self, request: object, client_address: object) -> None:
        # A client that hangs up is what these tests are about.
        pass


@contextmanager
def proxy_to(endpoint: str) -> Iterator[Proxy]:
    server = _Server(urlsplit(endpoint).netloc)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server.proxy
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
