"""A web server with ranges and ETags, and containers on each kind of store."""

import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest


@dataclass
class WebServer:
    """What is served, and what was asked for. Paths are as on the wire."""

    url: str = ""
    files: dict = field(default_factory=dict)
    etag: str | None = '"tag-1"'
    modified: int | None = 1_600_000_000
    ranges: bool = True
    shift: int = 0
    failures: list = field(default_factory=list)
    requests: list = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        web = self.server.web
        web.requests.append((self.path, dict(self.headers)))
        if web.failures:
            return self._answer(web.failures.pop(0), b"")
        data = web.files.get(self.path)
        if data is None:
            return self._answer(404, b"no such thing")
        wanted = self.headers.get("Range")
        if not web.ranges or wanted is None:
            return self._answer(200, data)
        first, last = map(int, wanted.removeprefix("bytes=").split("-"))
        if first >= len(data):
            return self._answer(416, b"")
        first += web.shift
        body = data[first : last + 1]
        return self._answer(206, body, f"bytes {first}-{first + len(body) - 1}/{len(data)}")

    def _answer(self, status, body, content_range=None):
        web = self.server.web
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        if content_range is not None:
            self.send_header("Content-Range", content_range)
        if web.etag is not None:
            self.send_header("ETag", web.etag)
        if web.modified is not None:
            self.send_header("Last-Modified", formatdate(web.modified, usegmt=True))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextmanager
def _serving(web):
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.web = web
    web.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield web
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def web():
    with _serving(WebServer()) as server:
        yield server
