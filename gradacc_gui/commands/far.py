"""`gradacc attach`, and `--on HOST`: runs on other machines, over the user's own ssh."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from gradacc_gui.attaching.far_hosts import (
    FarAddress,
    check_host,
    known_hosts,
    parse_address,
    remember_host,
    settings_of_host,
)
from gradacc_gui.attaching.far_runs import list_far, resume_far, sendable, start_far
from gradacc_gui.attaching.mirror import LineState
from gradacc_gui.attaching.mirror_link import MirrorLink
from gradacc_gui.attaching.ssh_line import FarError
from gradacc_gui.commands.looking import print_records
from gradacc_gui.session.following import Follower
from trainer_backend.errors import UsageError
from trainer_backend.protocol import RunFailed
from trainer_backend.recipe import (
    apply_settings,
    default_name,
    parse_document,
    read_document,
    recipe_from_document,
)
from trainer_backend.run_directory import RunDirectory

if TYPE_CHECKING:
    from gradacc_gui.commands.progress import ProgressPrinter


def relay(arguments: argparse.Namespace) -> int:
    """`gradacc relay RUN`: the far end of a line, started by ssh."""
    from trainer_backend.relaying.relay import relay_here  # noqa: PLC0415 - only there

    return relay_here(arguments.run, arguments.after)


def attach(arguments: argparse.Namespace) -> int:
    """`gradacc attach [[USER@]HOST:RUN]`: without a run its runs are listed, without a host the hosts."""
    if arguments.address is None:
        hosts = known_hosts()
        print("\n".join(hosts) if hosts else "~/.ssh/config names no machine. `gradacc attach HOST:RUN`.")
        return 0
    address = parse_address(arguments.address)
    remember_host(address.host, arguments.gradacc)
    try:
        return attach_to(address, as_json=arguments.json) if address.run else _list(address.host, arguments)
    except FarError as error:
        _say_terminal(error)
        raise


def _list(host: str, arguments: argparse.Namespace) -> int:
    for run in list_far(host):
        if arguments.json:
            print(json.dumps({"id": run.id, "name": run.name, "state": run.state, "step": run.step}))
        else:
            print(f"{host}:{run.id}  {run.state:11}  step {run.step:,}")
    return 0


def attach_to(address: FarAddress, *, as_json: bool) -> int:
    """Mirror a run and print what it does, until it ends or Ctrl-C; gives the exit code, as `gradacc run`."""
    link = MirrorLink(address, settings_of_host(address.host), _say_line)
    watch: _MirrorWatch | None = None
    try:
        while True:
            link.step()
            if watch is None and link.mirror is not None:
                watch = _MirrorWatch(link.mirror.run, as_json=as_json)
            if watch is not None and watch.is_over(link):
                return watch.code
    except KeyboardInterrupt:
        print("Detached; the run keeps running.", file=sys.stderr)
        return 0
    finally:
        if watch is not None:
            watch.close()
        link.close()


class _MirrorWatch:
    """Prints what a mirror gets."""

    def __init__(self, run: RunDirectory, *, as_json: bool) -> None:
        self._follower = Follower(run)
        self._printer: ProgressPrinter | None = None
        if not as_json:
            from gradacc_gui.commands.progress import ProgressPrinter  # noqa: PLC0415 - rich, for people

            self._printer = ProgressPrinter(run)
            print(f"{run.typed}: mirrored in {run.path}. Ctrl-C detaches.", file=sys.stderr)

    @property
    def code(self) -> int:
        """As `gradacc run` ends."""
        return 1 if isinstance(self._follower.facts.ended, RunFailed) else 0

    def is_over(self, link: MirrorLink) -> bool:
        """Print what is new; whether the run has ended and all of it was printed."""
        heard = link.has_heard_all  # before the read, so that nothing that came since is missed
        found = self._follower.poll()
        if found:
            if self._printer is None:
                print_records(found.records(), as_json=True)
            else:
                self._printer.show(found)
            return False
        return heard

    def close(self) -> None:
        """Close the mirror's reader, and the bar."""
        self._follower.close()
        if self._printer is not None:
            self._printer.close()


def _say_line(state: LineState) -> None:
    """What becomes of the line, for a person."""
    if state.state == "waiting":
        print(f"{state.sentence} Trying again …", file=sys.stderr)


def _say_terminal(error: FarError) -> None:
    if error.terminal:
        print(f"In a terminal: {error.terminal}", file=sys.stderr)


# ------------------------------------------------------------------------------------ starting there


def run_on(arguments: argparse.Namespace) -> int:
    """`gradacc run RECIPE --on HOST`."""
    host = check_host(arguments.on)
    remember_host(host, arguments.gradacc)
    try:
        text = _recipe_text(arguments.recipe, arguments.set)
        run = start_far(host, text, options=_options(arguments), folder=arguments.folder)
    except FarError as error:
        _say_terminal(error)
        raise
    return _started(FarAddress(host, run), arguments)


def resume_on(host: str, run: str, arguments: argparse.Namespace) -> int:
    """`gradacc resume HOST:RUN`, or RUN --on HOST."""
    remember_host(check_host(host), arguments.gradacc)
    options = _options(arguments)
    if arguments.from_step is not None:
        options += ["--from-step", str(arguments.from_step)]
    options += ["--without-history"] if arguments.without_history else []
    try:
        started = resume_far(host, run, options)
    except FarError as error:
        _say_terminal(error)
        raise
    return _started(FarAddress(host, started), arguments)


def queue_on(arguments: argparse.Namespace) -> int:
    """`gradacc queue add RECIPE… --on HOST`."""
    host = check_host(arguments.on)
    remember_host(host, arguments.gradacc)
    texts = [_recipe_text(recipe, arguments.set) for recipe in arguments.recipes]
    options = _options(arguments) + (["--first"] if arguments.first else [])
    try:
        for text in texts:
            run = start_far(host, text, queued=True, options=options, folder=arguments.folder)
            print(json.dumps({"id": run, "host": host}) if arguments.json else f"{host}:{run}")
    except FarError as error:
        _say_terminal(error)
        raise
    return 0


def _recipe_text(name: str, settings: list[str]) -> str:
    """A recipe for another machine, checked here first. Raises UsageError."""
    path = Path(name)
    if not (path.is_file() or path.suffix == ".toml"):
        message = f"{name} is not a recipe. --on takes a .toml file; a run there is resumed: gradacc resume."
        raise UsageError(message)
    document = read_document(path)
    apply_settings(document, settings)
    text = sendable(document.as_string(), default_name(path))
    recipe_from_document(parse_document(text, name), folder=path.absolute().parent, where=name)
    return text


def _options(arguments: argparse.Namespace) -> list[str]:
    """What is passed on as it stands: it concerns the far machine."""
    words = ["--python", arguments.python] if arguments.python else []
    return words + (["--install"] if arguments.install else [])


def _started(address: FarAddress, arguments: argparse.Namespace) -> int:
    """Say which run it is, and follow it unless it shall go on alone."""
    if arguments.detach:
        typed = f"{address.host}:{address.run}"
        print(json.dumps({"id": address.run, "host": address.host}) if arguments.json else typed)
        return 0
    return attach_to(address, as_json=arguments.json)
