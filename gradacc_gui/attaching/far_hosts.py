"""Machines that ssh reaches: how one is named, which are known, and how gradacc is started there."""

from __future__ import annotations

import glob
import re
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec

from trainer_backend.errors import UsageError
from trainer_backend.private_files import make_private, private_opener
from trainer_backend.regular_files import LARGEST_TEXT_BYTES, read_regular
from trainer_backend.run_directory import mirrors_folder

GRADACC: Final = "gradacc"
"""The command on the far machine, unless another was given for it."""
DEEPEST_INCLUDE: Final = 8
_HOST: Final = re.compile(r"[A-Za-z0-9_%\[:.][\w.@%:+\[\]-]*", re.ASCII)
"""No blanks, nothing that a shell reads, and no hyphen first, which ssh would take for an option."""


class FarAddress(msgspec.Struct, frozen=True):
    """[USER@]HOST:RUN."""

    host: str
    """As ssh is told it."""
    run: str
    """An id, a name or a directory there; empty where none was given."""


class HostSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is remembered of a machine."""

    gradacc: str = GRADACC
    """The command that runs gradacc there, as a shell there reads it."""


def parse_address(text: str) -> FarAddress:
    """`[USER@]HOST:RUN`; an IPv6 address stands in brackets. Raises UsageError."""
    host, colon, run = text.strip().partition(":")
    if host.startswith("["):
        inside, bracket, rest = text.strip().partition("]")
        host, colon, run = inside + bracket, rest[:1], rest[1:]
    if not colon:
        message = f"{text!r} is no run on another machine. Give it as [USER@]HOST:RUN, such as gpu1:{text}."
        raise UsageError(message)
    return FarAddress(check_host(host), run.strip())


def check_host(host: str) -> str:
    """Itself. Raises UsageError for what is no machine's name."""
    if not _HOST.fullmatch(host):
        message = f"{host!r} is not a machine's name. Give it as ssh takes it: HOST, or USER@HOST."
        raise UsageError(message)
    return host


def host_folder(host: str) -> Path:
    """Where mirrors of a machine's runs lie."""
    return mirrors_folder() / quote(host, safe="@.-_")


def settings_of_host(host: str) -> HostSettings:
    """What is remembered of a machine; the defaults where nothing is."""
    try:
        return msgspec.json.decode(
            read_regular(host_folder(host) / "host.json", LARGEST_TEXT_BYTES), type=HostSettings
        )
    except (OSError, msgspec.DecodeError):
        return HostSettings()


def remember_host(host: str, gradacc: str | None) -> HostSettings:
    """Remember how gradacc is started on a machine; None keeps what is known. Raises UsageError."""
    if gradacc is None:
        return settings_of_host(host)
    if not gradacc.strip() or not gradacc.isprintable():
        message = f"--gradacc {gradacc!r} is not a command. Give the path of gradacc on {host}."
        raise UsageError(message)
    settings = HostSettings(gradacc=gradacc.strip())
    path = make_private(host_folder(host)) / "host.json"
    with open(path, "wb", opener=private_opener) as file:
        file.write(msgspec.json.encode(settings))
    return settings


def known_hosts(config: Path | None = None) -> list[str]:
    """Names that ~/.ssh/config gives machines, in its order; patterns are no names.

    Read from the file, since ssh itself lists none (ssh_config(5): Host, Include).
    """
    path = Path.home() / ".ssh" / "config" if config is None else config
    return list(dict.fromkeys(_hosts_in(path, path.parent, DEEPEST_INCLUDE)))


def _hosts_in(path: Path, folder: Path, deepest: int) -> list[str]:
    try:
        text = read_regular(path, LARGEST_TEXT_BYTES, follow=True).decode("utf-8", "replace")
    except OSError:
        return []
    found: list[str] = []
    for line in text.splitlines():
        key, _, rest = line.strip().replace("=", " ", 1).partition(" ")
        words = [word.strip('"') for word in rest.split()]
        if key.lower() == "host":
            found += [word for word in words if not set(word) & set("*?!") and _HOST.fullmatch(word)]
        elif key.lower() == "include" and deepest:
            for word in words:
                pattern = str(folder / Path(word).expanduser())
                with suppress(OSError, ValueError):
                    for other in sorted(glob.glob(pattern)):  # noqa: PTH207 - an absolute pattern
                        found += _hosts_in(Path(other), folder, deepest - 1)
    return found
