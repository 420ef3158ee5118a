"""A process that has loaded everything a run needs, and forks a process for each run.

It computes nothing: threads start in the fork, as in a fresh process, so a run has the same bits.
It is told what to do over a socket that only the sweep has: JSON, and the files that the new
process has as stdin, stdout and stderr.
"""

import contextlib
import gc
import json
import os
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import IO, Any

USABLE = sys.platform == "linux"  # elsewhere system libraries may not survive a fork
LONGEST = 4096  # bytes of a message
FILES = 3


class Warm:
    """The sweep's end: starts the warm process with the first run, and anew if it was killed."""

    def __init__(self) -> None:
        self.server: Connection | None = None
        self.started = 0

    def start(self, errors: IO[bytes]) -> "Forked":
        """A process that waits for an order on its stdin."""
        its_in, our_out = os.pipe()
        our_in, its_out = os.pipe()
        self.started += 1
        order, files = {"start": self.started}, (its_in, its_out, errors.fileno())
        if self.server is None or not self.server.tell(order, files):
            self.close()
            self.server = Connection()
            self.server.tell(order, files)
        os.close(its_in)
        os.close(its_out)
        stdin, stdout = os.fdopen(our_out, "w"), os.fdopen(our_in, "r")
        return Forked(self.server, self.started, stdin, stdout)

    def close(self) -> None:
        """End the warm process; those that it has forked go on."""
        if self.server is not None:
            self.server.close()


class Forked:
    """One process of a warm one, as far as a sweep needs it."""

    def __init__(self, server: "Connection", number: int, stdin: IO[str], stdout: IO[str]) -> None:
        self.server, self.number = server, number
        self.stdin: IO[str] | None = stdin
        self.stdout: IO[str] | None = stdout

    def send_signal(self, number: int) -> None:
        told = self.server.tell({"signal": number, "of": self.number})
        if not told and self.stdin is not None:  # nobody to ask: it ends when its stdin does
            self.stdin.close()

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def wait(self) -> int:
        """Its exit code, once it has ended; less than 0 is the signal that killed it."""
        return self.server.code_of(self.number)


class Connection:
    """A warm process, and the line to it."""

    def __init__(self) -> None:
        self.codes: dict[int, int] = {}
        self.line, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            self.process = subprocess.Popen(
                # -P: a file json.py where the sweep was started is none of ours.
                [sys.executable, "-P", "-m", "metasp.sweeps.warm", str(its.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[its.fileno()],
                env={**os.environ, "OMP_WAIT_POLICY": "passive"},
                start_new_session=True,  # Ctrl-C reaches the sweep alone, which then asks its runs
            )

    def tell(self, message: dict[str, Any], files: Sequence[int] = ()) -> bool:
        """Whether there is still somebody who hears it."""
        try:
            socket.send_fds(self.line, [json.dumps(message).encode()], list(files))
        except OSError:
            return False
        return True

    def code_of(self, number: int) -> int:
        """Wait for the end of one process. Where the warm one was killed nobody knows its code."""
        while number not in self.codes:
            try:
                said = self.line.recv(LONGEST)
            except OSError:
                said = b""
            if not said:
                return 1
            ended = json.loads(said)
            self.codes[ended["ended"]] = ended["code"]
        return self.codes.pop(number)

    def close(self) -> None:
        self.line.close()
        self.process.wait()


def load() -> Callable[[], None]:
    """Import all that a run may use; gives what a forked process is to do."""
    import pyarrow as pa
    import pyarrow.dataset  # and with it compute and parquet

    from metasp.methods import METHODS
    from metasp.sweeps import worker

    for recipe in METHODS.values():
        assert recipe.kind  # loads its module
    pa.array([0])  # looks for pandas, which takes long where it is installed
    gc.collect()
    gc.freeze()  # so that collecting garbage does not copy the pages that all share
    return worker.main


class Server:
    """The warm end: forks, signals and buries processes, each known by the sweep's number."""

    def __init__(self, line: socket.socket, work: Callable[[], None]) -> None:
        self.line, self.work = line, work
        self.running: dict[int, int] = {}  # number by process id
        self.woken, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)

    def serve(self) -> None:
        """Until the sweep has closed its end, or is dead."""
        while True:
            ready, _, _ = select.select([self.line.fileno(), self.woken], [], [])
            if self.woken in ready:
                os.read(self.woken, LONGEST)
            self._bury()
            if self.line.fileno() in ready:
                said, files, _, _ = socket.recv_fds(self.line, LONGEST, FILES)
                if not said:
                    return
                self._obey(json.loads(said), files)

    def _obey(self, message: dict[str, Any], files: list[int]) -> None:
        if "start" in message:
            process = os.fork()
            if not process:
                self._become(files)
            self.running[process] = message["start"]
            for file in files:
                os.close(file)
            return
        for (
            process,
            number,
        ) in self.running.items():  # none that was buried: its id may be another's
            if number == message["of"]:
                os.kill(process, message["signal"])

    def _become(self, files: list[int]) -> None:
        """Be the process of a run, from its first breath to its last."""
        code = 1
        try:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            os.setsid()
            self.line.close()
            for place, file in enumerate(files):
                os.dup2(file, place)
                os.close(file)
            self.work()
            code = 0
        except BaseException:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
        finally:
            with contextlib.suppress(OSError):
                sys.stderr.flush()
            os._exit(code)

    def _bury(self) -> None:
        while self.running:
            process, status = os.waitpid(-1, os.WNOHANG)
            if not process:
                return
            ended = {"ended": self.running.pop(process), "code": os.waitstatus_to_exitcode(status)}
            with contextlib.suppress(BrokenPipeError):
                self.line.send(json.dumps(ended).encode())


def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as line:
        Server(line, load()).serve()


if __name__ == "__main__":
    main()
