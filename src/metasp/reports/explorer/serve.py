"""The page on this machine's own address, for this machine alone."""

import contextlib
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOST = "127.0.0.1"


def server_of(page: bytes, port: int = 0) -> ThreadingHTTPServer:
    """A server of one page at `/`; port 0 takes a free one."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # Another name for this address in the browser would be another site reading along.
            if self.headers.get("Host") not in names:
                self.send_error(HTTPStatus.FORBIDDEN)
            elif self.path == "/favicon.ico":
                self.send_response(HTTPStatus.NO_CONTENT)
                self.end_headers()
            elif self.path.split("?")[0] != "/":
                self.send_error(HTTPStatus.NOT_FOUND)
            else:
                self.send_response(HTTPStatus.OK)
                self.send_header("Content-Type", "text/html; charset=utf-8")
                self.send_header("Content-Length", str(len(page)))
                self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
                self.send_header("X-Content-Type-Options", "nosniff")
                self.end_headers()
                with contextlib.suppress(ConnectionError):  # closed before it was loaded
                    self.wfile.write(page)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet: the terminal shows the address, not each request."""

    server = ThreadingHTTPServer((HOST, port), Handler)
    bound = server.server_port
    endings = [f":{bound}", ""] if bound == 80 else [f":{bound}"]  # browsers leave 80 out
    names = {name + ending for name in (HOST, "localhost") for ending in endings}
    return server
