"""The page served: for this machine alone, until Ctrl-C."""

import http.client
import os
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from metasp.reports.explorer.serve import server_of
from tests.helpers import ROOT, metasp
from tests.reports.explored import make_run


@pytest.fixture
def port():
    server = server_of(b"<p>page</p>")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def ask(port: int, path: str, host: str | None = None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path, headers={"Host": host or f"127.0.0.1:{port}"})
    answer = connection.getresponse()
    return answer.status, answer.read(), dict(answer.getheaders())


def test_one_page_and_nothing_else(port):
    status, content, headers = ask(port, "/")
    assert (status, content) == (200, b"<p>page</p>")
    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert ask(port, "/", f"localhost:{port}")[0] == 200
    for path in ("/spec.toml", "/../spec.toml", "//etc/passwd", "/%2e%2e/x"):
        assert ask(port, path)[0] == 404


def test_another_sites_name_for_this_address_is_refused(port):
    assert ask(port, "/", "evil.example")[0] == 403
    assert ask(port, "/", f"evil.example:{port}")[0] == 403


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
            port = int(address.rstrip("/").rsplit(":", 1)[1])
            assert address == f"http://127.0.0.1:{port}/"
            status, content, _ = ask(port, "/")
            assert status == 200
            assert content == Path(page).read_bytes()
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
    server = server_of(b"x" * 50_000_000)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=10) as caller:
            host = f"Host: 127.0.0.1:{server.server_port}"
            caller.sendall(f"GET / HTTP/1.1\r\n{host}\r\n\r\n".encode())
            caller.recv(1000)
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        time.sleep(0.5)
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert capfd.readouterr().err == ""
