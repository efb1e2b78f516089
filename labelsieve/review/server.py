"""HTTP server of the review page: listens on 127.0.0.1 and answers only requests that carry the printed token."""

import hmac
import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from labelsieve.errors import InputError, LabelsieveError, ResourceError
from labelsieve.review.state import RequestError, ReviewState

PAGE_FOLDER = Path(__file__).parent / "page"
PAGE_FILES = {
    "/": ("page.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    **{
        f"/{name}.js": (f"{name}.js", "text/javascript; charset=utf-8")
        for name in ("api", "picker", "viewer", "compare", "grid", "page")
    },
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}
MAX_BODY = 64 * 1024  # bytes, about 3,000 decisions of one action
MAX_DISCARDED = 2**20  # bytes of a refused body that are read and discarded


class _Reply(NamedTuple):
    """Content, content type and status of an HTTP answer."""

    content: bytes
    content_type: str
    status: int = 200


class ReviewServer(ThreadingHTTPServer):
    """Server of the reviews of one or several runs, on a free port by default."""

    daemon_threads = True
    request_queue_size = 128  # connections that wait to be accepted

    def __init__(
        self, states: Sequence[ReviewState], token: str, port: int | None = None, reviewer: str | None = None
    ) -> None:
        if port is not None and not 1024 <= port <= 65535:
            raise InputError(f"--port must be between 1024 and 65535, got {port}; omit it to use a free port")
        try:
            super().__init__(("127.0.0.1", port or 0), _RequestHandler)
        except OSError as error:
            raise InputError(f"cannot use port {port}: {error.strerror}; omit --port to use a free port") from error
        self.states, self.token, self.reviewer = states, token, reviewer

    @property
    def url(self) -> str:
        """Return the address of the page, with its token."""
        return f"http://127.0.0.1:{self.server_port}/?token={self.token}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print the traceback of an unexpected error; closed connections are normal."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


class _RequestHandler(BaseHTTPRequestHandler):
    """Handler of one connection."""

    server: ReviewServer
    protocol_version = "HTTP/1.1"
    timeout = 60  # seconds without data from the client

    def do_GET(self) -> None:
        self._answer(self._get)

    def do_POST(self) -> None:
        self._answer(self._post)

    def _answer(self, route: Callable[[str, dict[str, list[str]]], _Reply]) -> None:
        try:
            target = urlsplit(self.path)
            query = parse_qs(target.query)
            _check_host_and_token(self.headers, query, self.server.server_port, self.server.token)
            reply = route(target.path, query)
        except RequestError as error:
            reply = _json_reply({"error": str(error), **error.fields}, error.status)
        except LabelsieveError as error:
            reply = _json_reply({"error": str(error)}, 507 if isinstance(error, ResourceError) else 500)
        except ValueError:
            reply = _json_reply({"error": "invalid address"}, 400)
        self.close_connection = self.close_connection or reply.status >= 400
        self._send(reply)
        if reply.status >= 400:
            self._discard_body()

    def _get(self, path: str, query: dict[str, list[str]]) -> _Reply:
        if path in PAGE_FILES:
            name, content_type = PAGE_FILES[path]
            content = (PAGE_FOLDER / name).read_bytes()
            return _Reply(content.replace(b"{{token}}", self.server.token.encode()), content_type)
        state = self._state(query)
        if path == "/samples":
            runs = [each.name for each in self.server.states]
            return _json_reply({**state.initial(), "runs": runs, "reviewer": self.server.reviewer})
        if path == "/ready":
            return _json_reply({"ready": state.ready})
        if path == "/changes":
            since = query.get("since", ["0"])[0]
            if not re.fullmatch("[0-9]{1,12}", since):
                raise RequestError(400, "since must be a non-negative integer")
            return _json_reply(state.changes(int(since)))
        if wanted := re.fullmatch(r"/(thumbs|pictures|details)/([0-9]{1,12})", path):
            index = int(wanted[2])
            if wanted[1] == "details":
                return _json_reply(state.details(index))
            if wanted[1] == "thumbs":
                return _Reply(*state.thumbnail_image(index))
            return _Reply(*state.picture(index, query.get("size", ["full"])[0]))
        raise RequestError(404, "nothing at this address")

    def _post(self, path: str, query: dict[str, list[str]]) -> _Reply:
        if self.headers.get_all("Origin") != [f"http://{self.headers['Host']}"]:
            raise RequestError(403, "requests from other pages are refused")
        if self.headers.get_content_type() != "application/json":
            raise RequestError(415, "the content type must be application/json")
        request = self._read_body()
        state = self._state(query)
        actions: dict[str, Callable[[], dict[str, Any]]] = {
            "/decide": lambda: state.decide(request),
            "/decide-many": lambda: state.decide_many(request),
            "/export": state.export,
        }
        if path not in actions:
            raise RequestError(404, "nothing at this address")
        return _json_reply(actions[path]())

    def _state(self, query: Mapping[str, Sequence[str]]) -> ReviewState:
        """Return the review of the run that a request names by its number."""
        number = query.get("run", ["0"])[0]
        if not re.fullmatch("[0-9]{1,4}", number) or int(number) >= len(self.server.states):
            raise RequestError(404, "no such run")
        return self.server.states[int(number)]

    def _read_body(self) -> dict[str, Any]:
        """Return the JSON object in the body."""
        length = self._content_length()
        if length is None:
            raise RequestError(411, "the header Content-Length is missing or invalid")
        if length > MAX_BODY:
            raise RequestError(413, f"the body is larger than {MAX_BODY:,} bytes")
        content = self.rfile.read(length)
        del self.headers["Content-Length"]  # nothing is left to discard
        try:
            request = json.loads(content)
        except (ValueError, RecursionError):
            raise RequestError(400, "the body is not JSON") from None
        if not isinstance(request, dict):
            raise RequestError(400, "the body is not a JSON object")
        return request

    def _content_length(self) -> int | None:
        values = self.headers.get_all("Content-Length") or []
        return int(values[0]) if len(values) == 1 and re.fullmatch("[0-9]{1,15}", values[0]) else None

    def _discard_body(self) -> None:
        """Read and discard the body of a refused request, so that the client receives the answer."""
        self.connection.settimeout(1)
        self.rfile.read(min(self._content_length() or 0, MAX_DISCARDED))

    def _send(self, reply: _Reply) -> None:
        self.send_response(reply.status)
        self.send_header("Content-Type", reply.content_type)
        self.send_header("Content-Length", str(len(reply.content)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(reply.content)

    def end_headers(self) -> None:
        """Add the security headers to every answer."""
        for name, value in SECURITY_HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def version_string(self) -> str:
        """Return the Server header."""
        return "labelsieve"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: addresses contain the token."""


def _check_host_and_token(headers: Message, query: Mapping[str, Sequence[str]], port: int, token: str) -> None:
    """Refuse other host names (DNS rebinding) and missing or wrong tokens."""
    if headers.get_all("Host") not in ([f"127.0.0.1:{port}"], [f"localhost:{port}"]):
        raise RequestError(403, "wrong host name; open the address that labelsieve review printed")
    tokens = query.get("token", [])
    if len(tokens) != 1 or not hmac.compare_digest(tokens[0].encode(errors="replace"), token.encode()):
        raise RequestError(403, "missing or wrong token; open the address that labelsieve review printed")


def _json_reply(value: dict[str, Any], status: int = 200) -> _Reply:
    """Return a value as JSON."""
    return _Reply(json.dumps(value).encode(), "application/json", status)
