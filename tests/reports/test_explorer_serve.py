"""The page served: for this machine alone, until Ctrl-C."""

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from metasp.corrections import read_corrections
from metasp.reports.explorer.desk import Desk, Drawer
from metasp.reports.explorer.serve import server_of
from tests.helpers import ROOT, metasp
from tests.reports.page_factories import NAMES, make_run


@contextlib.contextmanager
def serving(page: bytes, desk: Desk | None = None):
    server = server_of(page, desk=desk)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def server():
    with serving(b"<p>page</p>") as running:
        yield running


def port_of(address: str) -> int:
    return urlsplit(address).port


def cookie_of(address: str) -> str:
    """The cookie that a visit of the whole address gives."""
    status, _, headers = ask(port_of(address), f"/?{urlsplit(address).query}")
    assert (status, headers["Location"]) == (303, "/")
    cookie, *flags = headers["Set-Cookie"].split("; ")
    assert {"HttpOnly", "SameSite=Strict"} <= set(flags)
    return cookie


def ask(port: int, path: str, host: str | None = None, cookie: str = ""):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    headers = {"Host": host or f"127.0.0.1:{port}", "Cookie": cookie}
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    return answer.status, answer.read(), dict(answer.getheaders())


def served_in(page: bytes) -> dict:
    found = re.search(rb'<script type="application/json" id="served">(.*?)</script>', page, re.S)
    return json.loads(found[1])


@pytest.fixture
def desk(tmp_path):
    """A desk with verdicts on one run, served."""
    labels = {identity: identity % 4 for identity in range(50)}
    desk = Desk({"one": Drawer(tmp_path / "verified.csv", labels, NAMES, "RUN/verified.csv")})
    with serving(b"page", desk) as running:
        yield desk, running.server_port, cookie_of(running.address)


def post(desk, body: object, path: str = "/verified", **headers: str | None):
    """Send a body as the page does, with some headers changed, or left out (None)."""
    own, port, cookie = desk
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    usual = {
        "Host": f"127.0.0.1:{port}",
        "Origin": f"http://127.0.0.1:{port}",
        "Content-Type": "application/json",
        "X-Metasp-Token": own.token,
        "Cookie": cookie,
        "Content-Length": str(len(content)),
    }
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.putrequest("POST", path, skip_host=True, skip_accept_encoding=True)
    for name, value in {**usual, **{k.replace("_", "-"): v for k, v in headers.items()}}.items():
        if value is not None:
            connection.putheader(name, value)
    connection.endheaders(content)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def said(*verdicts: list, version: str = "", run: str = "one") -> dict:
    return {"run": run, "version": version, "verdicts": list(verdicts)}


def test_verdicts_are_saved_as_the_commands_take_them(desk):
    status, answer = post(desk, said([7, 3], [2, None], [5, 1]))
    assert status == 200
    drawer = desk[0].drawers["one"]
    assert json.loads(answer) == {"saved": 3, "version": drawer.version()}
    text = drawer.path.read_bytes().decode()
    assert text.splitlines() == [
        "id,label,was",
        '2,,"a ""quoted"", one"',
        "5,'=1+1,'=1+1",
        "7,plain & simple,plain & simple",
    ]
    found = read_corrections({"verified": drawer.path}, NAMES, 50)
    assert (found.verified, found.exclude) == (((5, 1), (7, 3)), (2,))
    assert drawer.saved() == [(2, None), (5, 1), (7, 3)]
    assert drawer.path.stat().st_mode & 0o077 == 0, "for the user alone"
    assert not list(drawer.path.parent.glob(".*")), "no half-written file is left"


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        (403, {"Origin": "http://evil.example"}),
        (403, {"Origin": None}),
        (403, {"Origin": "http://127.0.0.1:1"}),
        (403, {"Host": "evil.example", "Origin": "http://evil.example"}),
        (403, {"Sec_Fetch_Site": "cross-site"}),
        (403, {"X_Metasp_Token": "guess"}),
        (403, {"Cookie": None}),
        (403, {"Cookie": "metasp=guess"}),
        (403, {"X_Metasp_Token": None}),
        (415, {"Content_Type": "text/plain"}),
        (415, {"Content_Type": None}),
        (411, {"Content_Length": None}),
        (411, {"Transfer_Encoding": "chunked"}),
        (413, {"Content_Length": "4000001"}),
        (404, {"path": "/"}),
        (404, {"path": "/verified?x"}),
    ],
)
def test_who_is_not_the_page_cannot_save(desk, status, headers):
    assert post(desk, said([1, 1]), **headers)[0] == status
    assert not desk[0].drawers["one"].path.exists()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not a run's verdicts"),
        (b"\xff", "not a run's verdicts"),
        (b"[" * 100_000, "not a run's verdicts"),
        ([], "not a run's verdicts"),
        ({"run": "one", "version": ""}, "not a run's verdicts"),
        (said(run="../other"), "not of that run"),
        ({**said(), "run": ["one"]}, "not of that run"),
        ({**said(), "verdicts": {"1": 1}}, "are a list"),
        (said([1]), "an id and a class"),
        (said(["1", 1]), "an id and a class"),
        (said([True, 1]), "an id and a class"),
        (said([50, 1]), "no id 50"),
        (said([1, 4]), "names an unknown class"),
        (said([1, False]), "names an unknown class"),
        (said([1, 1], [1, 2]), "two verdicts about id 1"),
        (said([1, 1], version="other"), "changed since"),
    ],
)
def test_what_is_no_verdict_is_one_sentence(desk, body, words):
    status, answer = post(desk, body)
    assert status == 400
    assert words in answer
    assert "\n" not in answer
    assert not desk[0].drawers["one"].path.exists()


def test_a_file_edited_meanwhile_is_not_written_over(desk):
    drawer = desk[0].drawers["one"]
    version = json.loads(post(desk, said([1, 1]))[1])["version"]
    assert desk[0].told()["runs"]["one"]["version"] == version
    drawer.path.write_text("id,label\n1,=1+1\n2,=1+1\n")
    status, answer = post(desk, said([3, 1], version=version))
    assert (status, "changed since" in answer) == (400, True)
    assert desk[0].told()["runs"]["one"]["saved"] == [(1, 1), (2, 1)]
    for text, words in (("id,label\n1,nothing\n", "unknown class"), ("id,label\n77,\n", "id 77")):
        drawer.path.write_text(text)
        told = desk[0].told()["runs"]["one"]
        assert words in told["amiss"]
        assert told["saved"] == []
        status, answer = post(desk, said([3, 1], version=told["version"]))
        assert (status, words in answer) == (400, True)
        assert drawer.path.read_text() == text


@pytest.mark.parametrize("make", [Path.mkdir, os.mkfifo])
def test_what_is_no_file_is_one_sentence_and_waits_for_nobody(desk, make):
    drawer = desk[0].drawers["one"]
    make(drawer.path)
    status, answer = post(desk, said([1, 1]))
    assert (status, "is a folder or a pipe" in answer) == (400, True)
    assert "a pipe" in desk[0].told()["runs"]["one"]["amiss"]


def test_one_page_and_nothing_else_for_who_knows_the_address(server):
    port, cookie = server.server_port, cookie_of(server.address)
    status, content, headers = ask(port, "/", cookie=cookie)
    assert (status, content) == (200, b"<p>page</p>")
    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert ask(port, "/", f"localhost:{port}", cookie)[0] == 200
    for path in ("/spec.toml", "/../spec.toml", "//etc/passwd", "/%2e%2e/x"):
        assert ask(port, path, cookie=cookie)[0] == 404
    for host in ("evil.example", f"evil.example:{port}"):
        assert ask(port, "/", host, cookie)[0] == 403
    for path, other in (("/", ""), ("/?key=guess", ""), ("/", cookie[:-1]), ("/", "a=b; \x01")):
        status, content, headers = ask(port, path, cookie=other)
        assert (status, "Set-Cookie" in headers) == (403, False)
        assert b"page" not in content


def test_it_listens_on_this_machine_only():
    server = server_of(b"")
    assert server.socket.getsockname()[0] == "127.0.0.1"
    server.server_close()


@pytest.mark.slow
def test_a_taken_port_is_one_sentence(tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = metasp("explore", make_run(tmp_path).path, "--serve", "--port", port)
    assert done.returncode == 2
    assert f"port {port}" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_served_until_ctrl_c(tmp_path):
    run, opened = make_run(tmp_path), tmp_path / "opened"
    script = tmp_path / "browser"
    script.write_text(f'#!/bin/sh\necho "$1" > {opened}\n')
    script.chmod(0o755)
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "BROWSER": str(script)}
    command = [sys.executable, "-m", "metasp", "explore", str(run.path), "--serve"]
    # Where the tests themselves run in the background, Ctrl-C is ignored and children inherit that.
    heed = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env=environment, preexec_fn=heed
    ) as process:
        try:
            page = process.stdout.readline().strip()
            address = process.stdout.readline().split()[0]
            assert address.startswith("http://127.0.0.1:")
            status, content, _ = ask(port_of(address), "/", cookie=cookie_of(address))
            assert status == 200
            assert Path(page).stat().st_mode & 0o077 == 0
            told, wanted = served_in(content), Path(page).read_bytes()
            assert told["token"].encode() not in wanted, "the file can be mailed: it has no token"
            assert told["runs"][run.path.name]["file"] == str(run.path / "verified.csv")
            own = json.dumps(told, ensure_ascii=False, separators=(",", ":")).encode()
            bare = content.replace(own, b"null").replace(b"; connect-src 'self'", b"")
            assert bare == wanted
            until = time.monotonic() + 20
            while not (opened.exists() and opened.read_text()) and time.monotonic() < until:
                time.sleep(0.05)
            assert opened.read_text().strip() == address
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=20) == 0
        finally:
            process.kill()


def test_a_browser_that_goes_away_is_no_traceback(capfd):
    """The connection is reset while a page too large for any buffer is on its way."""
    with serving(b"x" * 50_000_000) as server:
        cookie = cookie_of(server.address)
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as caller:
            head = f"Host: 127.0.0.1:{server.server_port}\r\nCookie: {cookie}"
            caller.sendall(f"GET / HTTP/1.1\r\n{head}\r\n\r\n".encode())
            caller.recv(1000)
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        time.sleep(0.5)
    assert capfd.readouterr().err == ""
