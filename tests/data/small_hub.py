"""A hub of one data set on this machine, speaking as much HTTP as the real library asks for."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

REVISION = "a" * 40


@contextmanager
def serving(
    root: Path, name: str, served: list[int] | None = None
) -> Iterator[tuple[str, list[str]]]:
    """The address of a hub that has the folder as data set `name`, and what it was asked for. The
    bytes of each answer are added to `served`."""
    asked: list[str] = []
    served = [] if served is None else served

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            asked.append(self.path)

        def answer(self, code: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(code)
            for key, value in headers.items():
                self.send_header(key.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)
                served.append(len(body))

        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            about, tree = f"/api/datasets/{name}", f"/api/datasets/{name}/tree/{REVISION}"
            file = root / path.removeprefix(f"/datasets/{name}/resolve/{REVISION}/")
            if path in (about, f"{about}/revision/main", f"{about}/revision/{REVISION}"):
                entry = {"id": name, "sha": REVISION, "private": False, "gated": False,
                         "disabled": False, "downloads": 0, "likes": 0, "tags": [],
                         "siblings": siblings(root),
                         "lastModified": "2024-01-01T00:00:00.000Z"}  # fmt: skip
                self.answer(200, json.dumps(entry).encode(), Content_Type="application/json")
            elif path.startswith(tree) and (folder := root / path[len(tree) + 1 :]).is_dir():
                within = (
                    folder.rglob("*") if "recursive=true" in self.path.lower() else folder.iterdir()
                )
                listed = [entry_of(inner, root) for inner in sorted(within)]
                self.answer(200, json.dumps(listed).encode(), Content_Type="application/json")
            elif path.startswith(f"/datasets/{name}/") and file.is_file():
                body = file.read_bytes()
                about = {"ETag": f'"{hashlib.sha256(body).hexdigest()}"', "X_Repo_Commit": REVISION}
                start, _, end = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
                if start:
                    last = min(int(end or len(body)), len(body) - 1)
                    about["Content_Range"] = f"bytes {start}-{last}/{len(body)}"
                    self.answer(206, body[int(start) : last + 1], **about)
                else:
                    self.answer(200, body, **about)
            else:
                known = path.startswith((f"/datasets/{name}/", f"{about}/"))
                self.answer(404, X_Error_Code="EntryNotFound" if known else "RepoNotFound")

        do_HEAD = do_GET

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def siblings(root: Path) -> list[dict[str, Any]]:
    """All files, as the description of a data set names them."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return [
        {"rfilename": str(path.relative_to(root)), "size": path.stat().st_size} for path in files
    ]


def entry_of(path: Path, root: Path) -> dict[str, Any]:
    kind, size = ("directory", 0) if path.is_dir() else ("file", path.stat().st_size)
    digest = hashlib.sha1(path.name.encode()).hexdigest()
    return {"type": kind, "path": str(path.relative_to(root)), "size": size, "oid": digest}
