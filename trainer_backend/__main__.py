"""`python -m trainer_backend run RECIPE|DIRECTORY`: the trainer, in the foreground, without a window.

A recipe makes a new run directory first; a directory (or a run's id) is started, or resumed from its
last checkpoint. Ctrl-C and SIGTERM ask for a clean stop. Exit codes: 0 done or stopped as asked,
1 the run failed, 2 bad usage or configuration.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import os
import sys
from pathlib import Path

import msgspec

from trainer_backend import torchrun
from trainer_backend.errors import GradaccError
from trainer_backend.plain_text import plain
from trainer_backend.private_files import expanded


def main(arguments: list[str] | None = None) -> int:
    """Run the command line; gives the exit code."""
    words = sys.argv[1:] if arguments is None else arguments
    if words[:1] == ["verify"]:  # it has a command line of its own
        from trainer_backend.verify.command import main as verify  # noqa: PLC0415 - only when asked for

        return verify(words[1:])
    if words[:1] == ["preview"]:  # likewise
        from trainer_backend.preflight import check_command  # noqa: PLC0415 - likewise

        if arguments is None:  # a process of its own
            check_command.give_way()
        return check_command.main(words[1:])
    if words[:1] == ["try"]:  # likewise
        from trainer_backend.trying import try_command  # noqa: PLC0415 - likewise

        return try_command.main(words[1:])
    if words[:1] == ["plan"]:  # likewise
        from trainer_backend.planner.plan_command import main as plan  # noqa: PLC0415 - likewise

        return plan(words[1:])
    if words[:1] == ["branch"]:  # likewise
        from trainer_backend.branching.branch_command import main as branch  # noqa: PLC0415 - likewise

        return branch(words[1:])
    if words[:1] == ["relay"]:  # likewise
        from trainer_backend.relaying.relay import main as relay  # noqa: PLC0415 - likewise

        return relay(words[1:])
    options = _parser().parse_args(words)
    try:
        return _run(options)
    except GradaccError as error:
        sys.stderr.write(f"{plain(str(error))}\n")
        return error.exit_code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer_backend", description=__doc__.split("\n\n", 1)[0]
    )
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train a recipe, or resume a run")
    run.add_argument("target", metavar="RECIPE|DIRECTORY", help="a recipe file, a run's directory or its id")
    run.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE",
        help="set a key of the recipe, such as accumulation.micro_batch_size=4",
    )  # fmt: skip
    run.add_argument(
        "--no-replay", action="store_true",
        help="on resume, do not repeat what was changed live after the checkpoint",
    )  # fmt: skip
    run.add_argument(
        "--from-step", type=int, metavar="K",
        help="go back to the checkpoint of optimizer step K, and on from there",
    )  # fmt: skip
    # For who launches it: JSON, the names of what lay in the inbox then.
    run.add_argument("--stale", type=json.loads, help=argparse.SUPPRESS)
    says = "prove that N micro-batches give one large batch's gradient"
    commands.add_parser("verify", add_help=False, help=says)
    says = "show the first optimizer step as the model will see it, and check the rest"
    commands.add_parser("preview", add_help=False, help=says)
    says = "ask a run's newest checkpoint, or write its weights for other programs"
    commands.add_parser("try", add_help=False, help=says)
    says = "find the fastest micro-batch and N that fit for an effective batch"
    commands.add_parser("plan", add_help=False, help=says)
    says = "try other effective batches from a run's newest checkpoint, over the same samples"
    commands.add_parser("branch", add_help=False, help=says)
    says = "hand a run's events on to another machine, and its commands back"
    commands.add_parser("relay", add_help=False, help=says)
    return parser


def _run(options: argparse.Namespace) -> int:
    # Here, not above: `--help` pays for none of it.
    from trainer_backend import recipe as recipes  # noqa: PLC0415
    from trainer_backend.regular_files import is_file, is_folder  # noqa: PLC0415
    from trainer_backend.run_directory import RunDirectory, find_run  # noqa: PLC0415
    from trainer_backend.trainer.attempt import run_attempt  # noqa: PLC0415
    from trainer_backend.trainer.lifecycle import print_line  # noqa: PLC0415
    from trainer_backend.wholeness import check_trainable  # noqa: PLC0415

    place = torchrun.place_of(os.environ)
    if place is not None and not place.leads:
        return _follow(options, place)
    target: str = options.target
    settings: list[str] = options.set
    path = expanded(target)
    if not is_folder(path) and (path.suffix == ".toml" or is_file(path)):
        recipe = recipes.with_settings(recipes.load_recipe(path), settings, str(path))
        recipe = recipes.recipe_for_run(recipe, recipe_path=str(path.absolute()))
        run = RunDirectory.create(recipe.text, name=recipe.config.run.name or recipes.default_name(path))
    else:
        run = RunDirectory(path) if is_folder(path) else find_run(target)
        run.check()
        check_trainable(run)  # before the recipe is written over
        recipe = recipes.with_settings(run.recipe(), settings, str(run.recipe_path))
        if settings:
            with run.locked():  # not under a trainer that is alive
                recipes.save_recipe(recipe.document, run.recipe_path)
    print_line(f"{run.id}: {run.path}")
    if place is None:
        asked = recipe.config.run
        ranks = torchrun.devices_here(asked.devices, asked.device)
        if ranks > 1:
            torchrun.become_launcher(run, ranks, _resumption(options))
    return run_attempt(
        run,
        recipe,
        replay=not options.no_replay,
        from_step=options.from_step,
        stale=options.stale,
        place=place,
    )


def _resumption(options: argparse.Namespace) -> list[str]:
    """The words of the command line that each rank is started with, too."""
    words = [] if not options.no_replay else ["--no-replay"]
    words += [] if options.from_step is None else ["--from-step", str(options.from_step)]
    return words + ([] if options.stale is None else ["--stale", json.dumps(options.stale)])


def _follow(options: argparse.Namespace, place: torchrun.RankPlace) -> int:
    """One of several ranks, behind rank 0."""
    from trainer_backend.run_directory import RunDirectory  # noqa: PLC0415 - as in `_run`
    from trainer_backend.trainer.attempt import follow  # noqa: PLC0415 - likewise

    told = torchrun.announced(place)
    if told.exit_code is not None:
        return told.exit_code
    run = RunDirectory(Path(told.run))
    place = msgspec.structs.replace(place, store=told.store)
    return follow(run, run.recipe(), place, from_step=options.from_step)


if __name__ == "__main__":
    if sys.stderr is not None:
        faulthandler.enable()
    from trainer_backend.trainer.streams import forgive_prints

    forgive_prints()
    code = main()
    from trainer_backend.trainer.lifecycle import exit_soon

    exit_soon(code)
    sys.exit(code)
