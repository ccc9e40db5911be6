"""Another machine for tests: this one, over a real sshd with a throw-away key, or a stand-in for ssh.

    machine = stand_in_machine(tmp_path, monkeypatch)       # `ssh` on PATH runs the far command here
    with ssh_machine(tmp_path, monkeypatch) as machine: ... # sshd on 127.0.0.1, for as long as it lasts

Its runs lie in a home of its own. `machine.gradacc` is the command that starts gradacc there.
"""

from __future__ import annotations

import getpass
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from gradacc_gui.attaching.far_hosts import remember_host
from tests.support.waiting import wait_for

ROOT = Path(__file__).parents[2]
HOST = "far-gpu"

_STAND_IN = """\
#!/bin/sh
# Runs the far command here, as ssh would there: the words behind -- are the host and a line for its shell.
echo "$@" >> {log}
if [ -e {broken} ]; then cat {broken} >&2; exit 255; fi
while [ "$1" != -- ]; do shift; done
shift 2
cd {home} && exec sh -c "$1"
"""


class FarMachine(NamedTuple):
    """Where it is, and how to make it fail."""

    host: str
    home: Path
    """GRADACC_HOME there."""
    log: Path
    """What ssh was asked, a line each time."""
    broken: Path
    """While this file is there, ssh says what is in it and fails."""

    @property
    def runs(self) -> Path:
        """The folder of its runs."""
        return self.home / "runs"


def _program(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "ssh"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)


def _machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FarMachine:
    """Its folders, and the way to its gradacc; `ssh` is looked for in `folder`/bin first."""
    monkeypatch.setenv("PATH", f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
    home = folder / "far-home"
    home.mkdir(parents=True)
    environment = {"GRADACC_HOME": str(home), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    words = [
        "env",
        *(f"{name}={value}" for name, value in environment.items()),
        sys.executable,
        "-P",
        "-m",
        "gradacc_gui",
    ]
    remember_host(HOST, shlex.join(words))
    return FarMachine(HOST, home, folder / "ssh.log", folder / "broken")


def stand_in_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FarMachine:
    """A machine that is reached through a stand-in for ssh."""
    machine = _machine(folder, monkeypatch)
    places = {"log": machine.log, "broken": machine.broken, "home": machine.home}
    quoted = {name: shlex.quote(str(path)) for name, path in places.items()}
    _program(folder / "bin", _STAND_IN.format(**quoted))
    return machine


SSHD = shutil.which("sshd") or ("/usr/sbin/sshd" if Path("/usr/sbin/sshd").exists() else None)

_SERVER = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
"""
_CLIENT = """\
Host {host}
    HostName 127.0.0.1
    Port {port}
    User {user}
    IdentityFile {folder}/key
    IdentitiesOnly yes
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile none
    LogLevel ERROR
"""


@contextmanager
def ssh_machine(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FarMachine]:
    """A machine behind a real sshd. Its key is known, and ours opens it: `known_hosts`, `key` in `folder`."""
    assert SSHD is not None
    ssh = shutil.which("ssh")
    machine = _machine(folder, monkeypatch)
    for name in ("key", "host_key"):
        keygen = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)]
        subprocess.run(keygen, check=True, stdin=subprocess.DEVNULL)
    port = _free_port()
    names = {"folder": folder, "port": port, "host": HOST, "user": getpass.getuser()}
    (folder / "sshd_config").write_text(_SERVER.format(**names), encoding="utf-8")
    (folder / "ssh_config").write_text(_CLIENT.format(**names), encoding="utf-8")
    host_key = (folder / "host_key.pub").read_text("utf-8")
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {host_key}", encoding="utf-8")
    _program(folder / "bin", f'#!/bin/sh\nexec {ssh} -F {shlex.quote(str(folder / "ssh_config"))} "$@"\n')
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # the folder that Debian's sshd separates itself into
    with (folder / "sshd.log").open("wb") as log:
        server = subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(folder / "sshd_config")], stdin=subprocess.DEVNULL, stderr=log
        )
    try:
        wait_for(lambda: _answers(port) or server.poll() is not None)
        assert server.poll() is None, (folder / "sshd.log").read_text("utf-8")
        yield machine
    finally:
        server.terminate()
        server.wait()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1.0) as probe:
            return probe.recv(3) == b"SSH"
    except OSError:
        time.sleep(0.02)
        return False
