"""Runs of another machine: listed, started, resumed and queued there, by the gradacc that is there.

The recipe goes over the line as text. What it names (data, models, a task's module) is the far machine's:
paths in it are looked up there, from the far home folder or the folder that was given.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from gradacc_gui.attaching.far_hosts import settings_of_host
from gradacc_gui.attaching.ssh_line import FarError, far_command, run_far
from trainer_backend.recipe import parse_document, set_value

LIST_S: Final = 60.0


class FarRun(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a far machine's list of runs."""

    id: str
    name: str = ""
    state: str = ""
    step: int = 0
    loss: float | str | None = None
    started_at: float | None = None


def list_far(host: str) -> list[FarRun]:
    """The runs of a machine, newest first. Waits. Raises FarError."""
    far = far_command(settings_of_host(host), ["runs", "--json"])
    found = []
    for told in _objects(run_far(host, far, timeout_s=LIST_S)):
        try:
            found.append(msgspec.convert(told, FarRun))
        except msgspec.ValidationError as error:
            raise FarError(f"{host} has another version of gradacc: its list is not readable.") from error
    return found


def sendable(text: str, name: str) -> str:
    """A recipe as another machine shall read it: with a name, without this machine's source folder.

    Raises UsageError for text that is no TOML.
    """
    document = parse_document(text)
    document.pop("source", None)
    run = document.get("run")
    if not (isinstance(run, dict) and run.get("name")):
        set_value(document, "run.name", name)
    return document.as_string()


def start_far(
    host: str, recipe: str, *, queued: bool = False, options: Sequence[str] = (), folder: str = ""
) -> str:
    """Start a recipe on a machine, or put it into the queue there; gives the run's id.

    `options`: words for the far command, such as --python PATH; `folder`: where its paths begin.
    Waits. Raises FarError, with the far machine's sentence when it refuses.
    """
    words = ["queue", "add", "-", "--json"] if queued else ["run", "-", "--detach", "--json"]
    far = far_command(settings_of_host(host), [*words, *options], folder)
    return _id_of(host, run_far(host, far, recipe))


def resume_far(host: str, run: str, options: Sequence[str] = (), *, queued: bool = False) -> str:
    """Start a new attempt of a run there, or have a paused one go on; gives its id. As `start_far`."""
    words = ["queue", "add", run, "--json"] if queued else ["resume", run, "--detach", "--json"]
    said = run_far(host, far_command(settings_of_host(host), [*words, *options]))
    return run if not queued and '"CommandAccepted"' in said else _id_of(host, said)


def _id_of(host: str, said: str) -> str:
    for told in _objects(said):
        if isinstance(told.get("id"), str):
            return str(told["id"])
    raise FarError(f"{host} did not say which run it started. Look at it there: gradacc runs.")


def _objects(said: str) -> list[dict[str, Any]]:
    """JSON objects among lines; a shell's greetings are passed over."""
    found = []
    for line in said.splitlines():
        if line.startswith("{"):
            try:
                found.append(json.loads(line))
            except ValueError:
                continue
    return found
