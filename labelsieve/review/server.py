"""The page's server: on this machine only, for one person with the printed address."""

import json
import re
import sys
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from labelsieve.errors import InputError, LabelsieveError, ResourceError
from labelsieve.review.desk import Desk, Refused, refuse_foreign_writes, refuse_strangers
from labelsieve.review.suspects import IMAGE_TYPES

PAGE = Path(__file__).parent / "page"
FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/talk.js": ("talk.js", "text/javascript; charset=utf-8"),
    "/picker.js": ("picker.js", "text/javascript; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
LONGEST_BODY = 64 * 1024  # bytes
LONGEST_REFUSED = 2**20  # bytes of a refused body that are still read


class Reply(NamedTuple):
    content: bytes
    kind: str
    status: int = 200


class Server(ThreadingHTTPServer):
    """Listens on 127.0.0.1, on a free port unless one is named."""

    daemon_threads = True

    def __init__(self, desk: Desk, token: str, port: int | None = None) -> None:
        if port is not None and not 1024 <= port <= 65535:
            raise InputError(f"--port takes 1024 to 65535, got {port}; without it a free one is found")
        try:
            super().__init__(("127.0.0.1", port or 0), Handler)
        except OSError as error:
            raise InputError(f"cannot use port {port}: {error.strerror}; without --port a free one is found") from error
        self.desk, self.token = desk, token

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/?token={self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A browser that closes a connection is no event."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds, for a client that says nothing

    def do_GET(self) -> None:
        self._answer(self._got)

    def do_POST(self) -> None:
        self._answer(self._posted)

    def _answer(self, route: Callable[[str, dict[str, list[str]]], Reply]) -> None:
        try:
            target = urlsplit(self.path)
            query = parse_qs(target.query)
            refuse_strangers(self.headers, query, self.server.server_port, self.server.token)
            reply = route(target.path, query)
        except Refused as refused:
            reply = as_json({"error": str(refused), **refused.facts}, refused.status)
        except LabelsieveError as error:
            reply = as_json({"error": str(error)}, 507 if isinstance(error, ResourceError) else 500)
        except ValueError:
            reply = as_json({"error": "this address cannot be read"}, 400)
        self.close_connection = self.close_connection or reply.status >= 400
        self._send(reply)
        if reply.status >= 400:
            self._drain()

    def _got(self, path: str, query: dict[str, list[str]]) -> Reply:
        if path in FILES:
            name, kind = FILES[path]
            content = (PAGE / name).read_bytes()
            return Reply(content.replace(b"{{token}}", self.server.token.encode()), kind)
        if path == "/suspects":
            return as_json(self.server.desk.opening())
        if path == "/changes":
            return as_json(self.server.desk.changes(whole_number(query.get("since", ["0"])[0])))
        if thumb := re.fullmatch(r"/thumbs/([0-9]{1,12})", path):
            return image(self.server.desk.picture(int(thumb[1])))
        raise Refused(404, "there is nothing at this address")

    def _posted(self, path: str, query: dict[str, list[str]]) -> Reply:
        refuse_foreign_writes(self.headers)
        asked = self._body()
        if path == "/decide":
            return as_json(self.server.desk.decide(asked))
        if path == "/export":
            return as_json(self.server.desk.export())
        raise Refused(404, "there is nothing at this address")

    def _body(self) -> dict[str, Any]:
        """The JSON object that was sent."""
        length = self._length()
        if length is None:
            raise Refused(411, "a decision says how long it is")
        if length > LONGEST_BODY:
            raise Refused(413, f"a decision takes at most {LONGEST_BODY:,} bytes")
        content = self.rfile.read(length)
        del self.headers["Content-Length"]  # it is read
        try:
            asked = json.loads(content)
        except (ValueError, RecursionError):
            raise Refused(400, "this is no JSON") from None
        if not isinstance(asked, dict):
            raise Refused(400, "this is no JSON object")
        return asked

    def _length(self) -> int | None:
        told = self.headers.get_all("Content-Length") or []
        return int(told[0]) if len(told) == 1 and re.fullmatch("[0-9]{1,15}", told[0]) else None

    def _drain(self) -> None:
        """Read what was refused and throw it away, so that its sender gets to the answer."""
        self.connection.settimeout(1)
        self.rfile.read(min(self._length() or 0, LONGEST_REFUSED))

    def _send(self, reply: Reply) -> None:
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.kind)
        self.send_header("Content-Length", str(len(reply.content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(reply.content)

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def version_string(self) -> str:
        return "labelsieve"

    def log_message(self, format: str, *args: Any) -> None:
        """Addresses hold the token: nothing is logged."""


def as_json(value: dict[str, Any], status: int = 200) -> Reply:
    return Reply(json.dumps(value).encode(), "application/json", status)


def image(path: Path) -> Reply:
    try:
        return Reply(path.read_bytes(), IMAGE_TYPES[path.suffix])
    except OSError:
        raise Refused(404, "the image is gone") from None


def whole_number(text: str) -> int:
    if not re.fullmatch("[0-9]{1,12}", text):
        raise Refused(400, "a whole number is needed")
    return int(text)
