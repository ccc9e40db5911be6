"""The user's own ssh, and what it says when it cannot: sentences, and the command for a terminal.

BatchMode keeps ssh from asking anything: a password, a passphrase or the answer to "is this the right key?"
is given in a terminal, to ssh itself. Nothing of it passes through gradacc.
"""

from __future__ import annotations

import queue
import shlex
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Final
from urllib.parse import quote

from gradacc_gui.attaching.far_hosts import HostSettings
from trainer_backend.errors import GradaccError

SSH: Final = "ssh"
CONNECT_S: Final = 20
"""How long a connection may take to come about."""
ALIVE_S: Final = 10
"""A line that is silent for so long is asked whether it is there, three times."""
ANSWER_S: Final = 120.0
"""How long a command on the far machine may take: it may copy its trainer and probe an interpreter."""
END_S: Final = 5.0
SSH_FAILED: Final = 255
NOT_FOUND: Final = 127
REFUSED: Final = 2
SIGNALLED: Final = range(129, 193)
"""What a shell makes of a command that a signal ended."""
PIECE: Final = 64 * 1024
LONGEST_NAME: Final = 40
"""Of a host in a socket's name: systems take paths of about 104 characters, and ssh appends some."""
_NO_CONSOLE: Final[int] = getattr(subprocess, "CREATE_NO_WINDOW", 0)


class FarError(GradaccError):
    """A machine that cannot be reached, or what it refused; the sentence says what to do."""

    def __init__(self, message: str, *, terminal: str = "", may_pass: bool = False) -> None:
        super().__init__(message)
        self.terminal = terminal
        """What to type in a terminal first; empty where that does not help."""
        self.may_pass = may_pass
        """Whether trying again may help: the network, not a refusal."""


def open_line_path(host: str) -> Path:
    """Where a person's own open connection is looked for, so that it need not be opened again."""
    return Path.home() / ".ssh" / f"gradacc-{quote(host, safe='@.-_')[:LONGEST_NAME]}"


def open_line_command(host: str) -> str:
    """What to type to open a connection that asks for what it needs, and stays for gradacc to use."""
    return f"ssh -fNMS ~/.ssh/{shlex.quote(open_line_path(host).name)} {host}"


def ssh_command(host: str, far: str) -> list[str]:
    """The command that runs `far`, a line for the shell of `host`."""
    options = [
        "-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={CONNECT_S}",
        "-o", f"ServerAliveInterval={ALIVE_S}", "-o", "ServerAliveCountMax=3",
        "-o", "ClearAllForwardings=yes",
    ]  # fmt: skip
    if (path := open_line_path(host)).exists():
        options += ["-o", f"ControlPath={path}"]
    return [SSH, *options, "--", host, far]


def far_command(settings: HostSettings, words: Sequence[str], folder: str = "") -> str:
    """A line for the far shell: gradacc there with these words, in `folder` there."""
    line = f"{settings.gradacc} {shlex.join(words)}"
    return f"cd {shlex.quote(folder)} && {line}" if folder else line


def _start(host: str, far: str) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            ssh_command(host, far),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            creationflags=_NO_CONSOLE,
        )
    except FileNotFoundError as error:
        raise FarError("ssh was not found. Install an OpenSSH client, so that `ssh` can be typed.") from error
    except OSError as error:
        raise FarError(f"ssh cannot be started: {error.strerror}.") from error


def run_far(host: str, far: str, stdin: str = "", *, timeout_s: float = ANSWER_S) -> str:
    """Run one line on a machine; gives what it printed. Waits. Raises FarError."""
    process = _start(host, far)
    try:
        out, said = process.communicate(stdin.encode("utf-8", "surrogatepass"), timeout=timeout_s)
    except subprocess.TimeoutExpired as error:
        message = f"{host} did not answer within {timeout_s:g} s. Try again, or look there."
        raise FarError(message, may_pass=True) from error
    finally:
        if process.poll() is None:
            process.kill()
            process.communicate()
    if process.returncode:
        raise explain(host, process.returncode, said.decode("utf-8", "replace"))
    return out.decode("utf-8", "replace")


class SshLine:
    """A relay on another machine, while it lives: pieces of what it says, and a way to say something."""

    def __init__(self, host: str, far: str) -> None:
        """Raises FarError where ssh cannot be started."""
        self.host = host
        self._process = _start(host, far)
        self._pieces: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._said = bytearray()
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._threads = [
            threading.Thread(target=self._read, args=(self._process.stdout,), name="gradacc-line"),
            threading.Thread(target=self._listen, args=(self._process.stderr,), name="gradacc-line-errors"),
        ]
        for thread in self._threads:
            thread.daemon = True
            thread.start()

    def _read(self, stream: IO[bytes]) -> None:
        with suppress(OSError, ValueError):
            while piece := stream.read1(PIECE):  # type: ignore[attr-defined]  # a buffered reader
                self._pieces.put(piece)
        self._pieces.put(b"")

    def _listen(self, stream: IO[bytes]) -> None:
        with suppress(OSError, ValueError):
            while piece := stream.read1(PIECE):  # type: ignore[attr-defined]  # a buffered reader
                self._said += piece
                del self._said[:-PIECE]

    def get(self, timeout_s: float) -> bytes | None:
        """The next piece; b"" when the line has ended, None when nothing came in time."""
        try:
            return self._pieces.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def send(self, line: bytes) -> bool:
        """Say one line; False when the line has ended."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line + b"\n")
            self._process.stdin.flush()
        except (OSError, ValueError):
            return False
        return True

    def close(self) -> FarError:
        """End the line; gives why it had ended, where it had."""
        assert self._process.stdin is not None
        with suppress(OSError):
            self._process.stdin.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for thread in self._threads:
            thread.join()
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()
        return explain(self.host, self._process.returncode, self._said.decode("utf-8", "replace"))


def explain(host: str, code: int, said: str) -> FarError:
    """Why a command on another machine ended, in a sentence."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    if code == SSH_FAILED:
        return _of_ssh(host, said, lines)
    if code == NOT_FOUND or "command not found" in said or "is not recognized" in said:
        message = (
            f"gradacc was not found on {host}. Install it there, or name the command that starts it:"
            " --gradacc PATH (where it is installed: command -v gradacc)."
        )
        return FarError(message)
    if code == REFUSED and ("'relay' is none of" in said or "invalid choice" in said):
        message = f"{host} has an older gradacc, which cannot be attached to. Install this machine's there."
        return FarError(message)
    told = lines[-1] if lines else f"the command ended with exit code {code}"
    return FarError(f"{host}: {told}", may_pass=code in (0, *SIGNALLED) or code < 0)


def _of_ssh(host: str, said: str, lines: list[str]) -> FarError:
    """What ssh itself says when it fails."""
    if "REMOTE HOST IDENTIFICATION HAS CHANGED" in said:
        message = (
            f"The key of {host} is not the one that ssh knows. If the machine was not set up again, somebody"
            " may be pretending to be it. Compare the keys, then remove the old one in a terminal."
        )
        return FarError(message, terminal=f"ssh-keygen -R {host.rpartition('@')[2]}")
    if "Host key verification failed" in said:
        message = (
            f"ssh does not know the key of {host} yet. Connect once in a terminal and compare the key that it"
            " shows; then connect again here."
        )
        return FarError(message, terminal=f"ssh {host}")
    if "Permission denied" in said or "Too many authentication failures" in said:
        message = (
            f"{host} wants a password, a passphrase or another key, which only a terminal can ask for. Open"
            " the connection there; then connect again here, while it is open."
        )
        return FarError(message, terminal=open_line_command(host))
    told = lines[-1].removeprefix("ssh: ").rstrip(".") if lines else "ssh gave no reason"
    if "Could not resolve hostname" in said:
        return FarError(
            f"No machine is called {host} ({told}). Check the name, or ~/.ssh/config.", may_pass=True
        )
    message = f"{host} cannot be reached: {told}. Check that it is on and that `ssh {host}` works."
    return FarError(message, terminal=f"ssh {host}", may_pass=True)
