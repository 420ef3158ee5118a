"""The page on this machine's own address, for the user who started it alone.

Other users of the machine reach the address too. So it carries a secret, which the first visit
turns into a cookie; without either there is nothing to see."""

import contextlib
import hmac
import json
import secrets
from collections.abc import Callable
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from typing import ClassVar
from urllib.parse import parse_qs, urlsplit

from metasp.errors import UserError
from metasp.reports.explorer.desk import BYTES, Desk

HOST = "127.0.0.1"
SAVE = "/verified"  # where the page sends its verdicts
TOKEN = "X-Metasp-Token"
PATIENCE = 20.0  # seconds for a request to arrive


class PageHandler(BaseHTTPRequestHandler):
    """Gives the page at `/`, and takes verdicts from that page alone."""

    page: ClassVar[Callable[[], bytes]]
    desk: ClassVar[Desk | None]
    names: ClassVar[set[str]]  # of this server
    key: ClassVar[str]
    cookie: ClassVar[str]  # its name: browsers share cookies between the ports of a host
    timeout = PATIENCE

    def do_GET(self) -> None:
        # Another name for this address in the browser would be another site reading along.
        if self.headers.get("Host") not in self.names:
            self.send_error(HTTPStatus.FORBIDDEN)
        elif self.path == "/favicon.ico":
            self.send_response(HTTPStatus.NO_CONTENT)
            self.end_headers()
        elif urlsplit(self.path).path != "/":
            self.send_error(HTTPStatus.NOT_FOUND)
        elif same(parse_qs(urlsplit(self.path).query).get("key", [""])[0], self.key):
            self.send_response(HTTPStatus.SEE_OTHER)
            cookie = f"{self.cookie}={self.key}; HttpOnly; SameSite=Strict; Path=/"
            self.send_header("Set-Cookie", cookie)
            self.send_header("Location", "/")
            self.send_header("Referrer-Policy", "no-referrer")
            self.send_header("Content-Length", "0")
            self.end_headers()
        elif not self.knows_key():
            self.say(HTTPStatus.FORBIDDEN, "open the whole address that the terminal shows.")
        else:
            self.answer(HTTPStatus.OK, "text/html", type(self).page())

    def knows_key(self) -> bool:
        """Return whether the visitor has the cookie."""
        try:
            morsel = SimpleCookie(self.headers.get("Cookie", "")).get(self.cookie)
        except CookieError:
            return False
        return morsel is not None and same(morsel.value, self.key)

    def do_POST(self) -> None:
        refused = self.refusal()
        if refused is not None:
            self.close_connection = True  # what was sent is not read
            return self.say(*refused)
        desk = self.desk
        assert desk is not None
        length = int(self.headers["Content-Length"])
        try:
            content = self.rfile.read(length)
        except OSError:  # it went away, or took too long
            self.close_connection = True
            return None
        try:
            told = desk.take(content)
        except UserError as error:
            return self.say(HTTPStatus.BAD_REQUEST, str(error))
        except OSError as error:
            words = f"the verdicts could not be written: {error.strerror or error}."
            return self.say(HTTPStatus.INTERNAL_SERVER_ERROR, words)
        return self.answer(HTTPStatus.OK, "application/json", json.dumps(told).encode())

    def refusal(self) -> tuple[HTTPStatus, str] | None:
        """Why a request to save is not heard; None where it comes from the page itself."""
        host, given = self.headers.get("Host"), self.headers
        if host not in self.names or given.get("Origin") != f"http://{host}":
            return HTTPStatus.FORBIDDEN, "only the page itself may save."
        if given.get("Sec-Fetch-Site", "same-origin") != "same-origin":
            return HTTPStatus.FORBIDDEN, "only the page itself may save."
        if self.path != SAVE or self.desk is None:
            return HTTPStatus.NOT_FOUND, "there is nothing here."
        if not (self.knows_key() and same(given.get(TOKEN, ""), self.desk.token)):
            return HTTPStatus.FORBIDDEN, "this page was served before: load it again."
        if given.get_content_type() != "application/json":
            return HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "verdicts come as application/json."
        length = given.get("Content-Length", "")
        if "Transfer-Encoding" in given or not (length.isascii() and length.isdecimal()):
            return HTTPStatus.LENGTH_REQUIRED, "the length must be said."
        if len(length) > 12 or int(length) > BYTES:
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"more than {BYTES} bytes are not read."
        return None

    def say(self, status: HTTPStatus, words: str) -> None:
        self.answer(status, "text/plain", words.encode())

    def answer(self, status: HTTPStatus, kind: str, content: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.send_header("Referrer-Policy", "same-origin")
        with contextlib.suppress(ConnectionError):  # closed before it was loaded
            self.end_headers()
            self.wfile.write(content)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: the terminal shows the address, not each request."""


def same(text: str, secret: str) -> bool:
    """Compare in a time that does not tell where they differ."""
    return hmac.compare_digest(text.encode(errors="replace"), secret.encode())


class PageServer(ThreadingHTTPServer):
    """Serves one page at `address`."""

    address: str


def server_of(
    page: bytes | Callable[[], bytes], port: int = 0, desk: Desk | None = None
) -> PageServer:
    """A server of one page at `/`, which may be made anew at each visit; port 0 takes a free one.
    With a desk, what the page sends is saved."""

    class Handler(PageHandler):
        pass

    Handler.page = staticmethod(page if callable(page) else lambda: page)
    Handler.desk = desk
    Handler.key = secrets.token_urlsafe(24)
    server = PageServer((HOST, port), Handler)
    bound = server.server_port
    Handler.cookie = f"metasp-{bound}"
    endings = [f":{bound}", ""] if bound == 80 else [f":{bound}"]  # browsers leave 80 out
    Handler.names = set(map("".join, product((HOST, "localhost"), endings)))
    server.address = f"http://{HOST}:{bound}/?key={Handler.key}"
    return server
