"""The process that feeds one mirror for a window: `python -m gradacc_gui.attaching.feeding`.

It ends when its standard input does, so it never outlives the window; the run on the other machine goes on.
What becomes of it is told in a file, which the window looks at: it waits for nothing.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from gradacc_gui.attaching.far_hosts import FarAddress, host_folder, settings_of_host
from gradacc_gui.attaching.mirror import AttachedAlreadyError, LineState, read_state, write_state
from gradacc_gui.attaching.mirror_link import MirrorLink
from gradacc_gui.attaching.ssh_line import FarError
from gradacc_gui.session.interpreter import NO_CONSOLE, cleaned_environment
from trainer_backend.errors import GradaccError
from trainer_backend.private_files import home, make_private

END_S: Final = 10.0
ATTACHED: Final = "attached"
"""The state of a line that another process of this machine keeps."""


class Feeder:
    """A feeding process of this window's. Making one starts it; raises FarError where that cannot be."""

    def __init__(self, address: FarAddress) -> None:
        self.address = address
        self._path = make_private(host_folder(address.host)) / f".line-{uuid.uuid4().hex[:12]}.json"
        checkout = str(Path(__file__).resolve().parents[2])
        environment = cleaned_environment() | {"PYTHONPATH": checkout, "GRADACC_HOME": str(home())}
        words = [address.host, address.run, str(self._path)]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "gradacc_gui.attaching.feeding", *words],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=environment,
                creationflags=NO_CONSOLE,
                start_new_session=sys.platform != "win32",  # a Ctrl-C in the window's terminal is for it
            )
        except OSError as error:
            raise FarError(f"The connection cannot be started: {error.strerror}.") from error

    def state(self) -> LineState:
        """How the line is now. Reads one small file."""
        told = read_state(self._path) or LineState(state="connecting")
        if self._process.poll() is not None and told.state not in ("ended", ATTACHED):
            sentence = f"The connection to {self.address.host} ended without a reason."
            return LineState(sentence=sentence)
        return told

    def close(self) -> None:
        """Ask the process to end; it takes a moment. `wait` reaps it."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()

    def wait(self) -> None:
        """After `close`: until it has ended."""
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._path.unlink(missing_ok=True)


def feed(address: FarAddress, path: Path, stop: threading.Event) -> None:
    """Feed a mirror until `stop`, telling at `path` how the line is."""
    mirror_path = ""

    def tell(state: LineState) -> None:
        write_state(path, msgspec.structs.replace(state, run=mirror_path))

    link = MirrorLink(address, settings_of_host(address.host), tell)
    ended = LineState()
    try:
        while not stop.is_set():
            link.step()
            if link.mirror is not None and not mirror_path:
                mirror_path = str(link.mirror.run.path)
                tell(LineState(state="connected"))
    except AttachedAlreadyError as error:
        mirror_path = str(error.run.path)
        ended = LineState(state=ATTACHED)
    except FarError as error:
        ended = LineState(sentence=str(error), terminal=error.terminal)
    except GradaccError as error:
        ended = LineState(sentence=str(error))
    finally:
        link.close(ended)
        tell(ended)


def main(words: list[str]) -> int:
    """The process: HOST RUN FILE; gives its exit code."""
    host, run, path = words
    stop = threading.Event()

    def listen() -> None:
        sys.stdin.buffer.read()
        stop.set()

    threading.Thread(target=listen, name="gradacc-feeding", daemon=True).start()
    feed(FarAddress(host, run), Path(path), stop)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
