"""The console command `gradacc`. Light: it imports what a command needs when the command is run."""

from __future__ import annotations

import argparse
import difflib
import importlib
import io
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from gradacc_gui.plain_output import plain_output
from trainer_backend import __version__
from trainer_backend.errors import GradaccError

RUN_HELP = "an id, a unique prefix of one, a name, or a directory"


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: {message}. Try {self.prog} --help.\n")

    def _check_value(self, action: argparse.Action, value: Any) -> None:  # noqa: ANN401 - as argparse has it
        """A mistyped command gets the nearest one; argparse itself only lists them all."""
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        near = difflib.get_close_matches(str(value), known, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        message = f"{value!r} is none of {', '.join(known)}{hint}"
        raise argparse.ArgumentError(action, message)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; gives the exit code: 0 done, 1 the run failed, 2 bad usage or configuration."""
    for stream in (sys.stdout, sys.stderr):
        # JSON is UTF-8 everywhere; a console of another encoding gets a mark for what it cannot show.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(encoding=None if stream.isatty() else "utf-8", errors="backslashreplace")
    with plain_output():
        arguments = _parser().parse_args(argv)
        _go_on_with_queue()
        return _do(arguments)


def _do(arguments: argparse.Namespace) -> int:
    module, _, function = arguments.act.partition(":")
    try:
        code: int = getattr(importlib.import_module(f"gradacc_gui.commands.{module}"), function)(arguments)
        sys.stdout.flush()
    except GradaccError as error:
        print(error, file=sys.stderr)  # noqa: T201
        return error.exit_code
    except BrokenPipeError:
        # Whoever read our output has gone; what was started goes on. Python must not flush into it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        return 130
    return code


def _go_on_with_queue() -> None:
    """After a reboot the first command starts the queue's runner again, if anything waits."""
    from trainer_backend.private_files import home  # noqa: PLC0415 - `--help` needs none of it

    folder = home() / "queue"
    try:
        waits = any(any((folder / name).glob("*.json")) for name in ("waiting", "running"))
    except (OSError, ValueError):  # no home that could be one; whoever needs it says so
        return
    if waits:
        from gradacc_gui.queueing.runner import ensure_runner, leave_runners  # noqa: PLC0415 - likewise

        try:
            ensure_runner()
            leave_runners()
        except GradaccError as error:  # the command itself may well work
            print(error, file=sys.stderr)  # noqa: T201


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="gradacc",
        description="Train with gradient accumulation and watch it. Without a command: the window.",
        epilog="Runs live in GRADACC_HOME. Exit codes: 0 done, 1 the run failed, 2 bad usage or config.",
    )
    parser.add_argument("--version", action="version", version=f"gradacc {__version__}")
    parser.add_argument("--demo", action="store_true", help="open the window with its demo run started")
    parser.set_defaults(act="open_window:open_window")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    def command(name: str, act: str, text: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=text, description=f"{text[0].upper()}{text[1:]}.")
        added.set_defaults(act=act)
        return added

    _add_running(command)
    _add_steering(command)
    _add_looking(command)
    _add_queue(command)
    return parser


def _add_running(command: Any) -> None:  # noqa: ANN401 - a function of the parser's
    run = command("run", "running:run", "train a recipe without a window")
    run.add_argument("recipe", metavar="RECIPE", help="a .toml file; - is standard input")
    run.add_argument(
        "--set",
        metavar="KEY=VALUE",
        action="append",
        default=[],
        help="change the recipe for this run, such as accumulation.micro_batch_size=4; KEY= removes a key;"
        " may be repeated",
    )
    _add_start_options(run)
    _add_far_options(run, folder=True)

    resume = command("resume", "running:resume", "continue a paused, stopped, failed or interrupted run")
    resume.add_argument("run", metavar="RUN", help=RUN_HELP)
    resume.add_argument(
        "--from-step",
        metavar="K",
        type=int,
        help="go back to the checkpoint of optimizer step K; what came after it is trained again",
    )
    resume.add_argument(
        "--without-history",
        action="store_true",
        help="where the run's journal is lost or damaged: go on from the newest checkpoint with a new one",
    )
    resume.add_argument(
        "--from-best",
        action="store_true",
        help="go back to the best checkpoint, by checkpoint.metric of the recipe",
    )
    _add_start_options(resume)
    _add_far_options(resume)

    check = command(
        "check", "verify:check", "show a recipe's first optimizer step as the model will see it, and check it"
    )
    check.add_argument("recipe", metavar="RECIPE", help="a .toml file")
    check.add_argument("--json", action="store_true", help="print one object, as JSON")
    _add_python(check)

    plan = command("plan", "verify:plan", "find the fastest micro-batch and N that fit, by measuring")
    plan.add_argument("recipe", metavar="RECIPE", help="a .toml file")
    plan.add_argument("--effective-batch", metavar="B", type=int, help="by default the recipe's")
    plan.add_argument(
        "--memory", metavar="GIB", type=float, help="what the peak may be; by default all but 5-15 %%"
    )
    plan.add_argument(
        "--compare", action="store_true", help="also with activation checkpointing and the like changed"
    )
    plan.add_argument("--json", action="store_true", help="print the plan as JSON")
    _add_python(plan)

    branch = command(
        "branch",
        "verify:branch",
        "try other effective batches from a checkpoint, on the same data",
    )
    branch.add_argument("run", metavar="RUN", help=RUN_HELP)
    branch.add_argument("--samples", metavar="K", type=int, help="that each branch consumes")
    branch.add_argument("--device", help="instead of the run's own, which a live run may be using")
    branch.add_argument("--anyway", action="store_true", help="also where a live run has the device")
    branch.add_argument("--json", action="store_true", help="print the report as JSON")
    _add_python(branch)

    verify = command("verify", "verify:verify", "prove that N micro-batches give one large batch's gradient")
    verify.add_argument("recipe", metavar="RECIPE", help="a .toml file")
    verify.add_argument("--json", action="store_true", help="print the report as JSON")
    verify.add_argument("--report", metavar="FILE", help="write the report to a file")
    verify.add_argument("--steps", metavar="N,N,…", help="which N (default: 2, 4, 8 and the recipe's)")
    verify.add_argument("--samples", metavar="K", help="samples in the large batch")
    _add_python(verify)


def _add_start_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one event per line, as JSON")
    parser.add_argument("--detach", action="store_true", help="start it and return at once")
    parser.add_argument("--keep-awake", action="store_true", help="keep the system from sleeping meanwhile")
    _add_python(parser)


def _add_far_options(parser: argparse.ArgumentParser, *, folder: bool = False) -> None:
    parser.add_argument("--on", metavar="[USER@]HOST", help="do it on another machine, over your own ssh")
    _add_far_command(parser)
    if folder:
        parser.add_argument(
            "--folder", metavar="PATH", default="", help="with --on: where the recipe's paths begin, there"
        )


def _add_far_command(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--gradacc", metavar="COMMAND", help="what starts gradacc on the other machine; remembered for it"
    )


def _add_python(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--python",
        metavar="PATH",
        help="the interpreter (or its virtual environment) that trains; by default gradacc's own",
    )
    parser.add_argument(
        "--install",
        action="store_true",
        help="install what that interpreter lacks into gradacc's own folder, without asking",
    )


def _add_steering(command: Any) -> None:  # noqa: ANN401 - a function of the parser's
    change = command("set", "live_commands:change", "change a live run from its next optimizer step on")
    change.add_argument("run", metavar="RUN", help=RUN_HELP)
    change.add_argument(
        "key",
        metavar="KEY",
        help="gradient_accumulation_steps, effective_batch_size, micro_batch_size, learning_rate"
        " or max_grad_norm",
    )
    change.add_argument("value", metavar="VALUE", help="the new value; none removes max_grad_norm")
    change.add_argument(
        "--learning-rate-rule",
        choices=("none", "sqrt", "linear"),
        default="none",
        help="with a new N: scale the learning rate by 1, by the square root of the batch ratio, or by "
        "the ratio",
    )
    change.add_argument(
        "--change-effective-batch",
        action="store_true",
        help="with a new micro_batch_size: keep N instead of the effective batch",
    )
    plain = (
        ("pause", "pause", "wait at the next optimizer step"),
        ("checkpoint", "checkpoint", "save a checkpoint at the next optimizer step"),
        ("rollback", "roll_back", "roll a live run back to a checkpoint"),
        ("answer", "answer", "answer a run that a missed target has paused"),
        ("stop", "stop", "stop a run after the current optimizer step and a checkpoint"),
    )
    parsers = [change]
    for name, function, text in plain:
        parser = command(name, f"live_commands:{function}", text)
        parser.add_argument("run", metavar="RUN", help=RUN_HELP)
        if name == "rollback":
            step = "the checkpoint's optimizer step; by default the last good one"
            parser.add_argument("step", metavar="STEP", type=int, nargs="?", help=step)
            parser.add_argument("--best", action="store_true", help="to the best checkpoint instead")
            parser.add_argument(
                "--skip-samples", action="store_true", help="leave out the samples that came after it"
            )
            parser.add_argument(
                "--learning-rate-factor", metavar="F", type=float, help="multiply the learning rate by F"
            )
        if name == "answer":
            parser.add_argument("answer", choices=("continue", "stop", "roll-back"), help="what it shall do")
            parser.add_argument("--reason", default="", metavar="TEXT", help="why; it is recorded")
        parsers.append(parser)
    how = parsers[-1].add_mutually_exclusive_group()
    how.add_argument(
        "--now", action="store_true", help="do not finish the current step; it is repeated on resume"
    )
    how.add_argument(
        "--by-force",
        action="store_true",
        help="end the trainer's process, after asking: what is not saved is lost",
    )
    parsers[-1].add_argument("--yes", action="store_true", help="with --by-force: do not ask")
    for parser in parsers:
        parser.add_argument("--json", action="store_true", help="print the answer as JSON")
        parser.add_argument("--timeout", metavar="S", type=float, default=15.0, help="seconds to wait for it")


def _add_looking(command: Any) -> None:  # noqa: ANN401 - a function of the parser's
    runs = command("runs", "looking:runs", "list the runs")
    runs.add_argument("--json", action="store_true", help="print one run per line, as JSON")

    show = command("show", "looking:show", "show what a run is doing and has done")
    show.add_argument("run", metavar="RUN", help=RUN_HELP)
    show.add_argument("--json", action="store_true", help="print every event, one a line, as JSON")
    show.add_argument("--follow", action="store_true", help="keep printing until the run ends")

    tried = command("try", "verify:try_run", "ask a run's newest checkpoint, or write its weights for others")
    tried.add_argument("run", metavar="RUN", help=RUN_HELP)
    tried.add_argument("--prompt", metavar="TEXT", action="append", default=[], help="may be repeated")
    tried.add_argument("--chat", action="store_true", help="pose prompts by the chat template")
    tried.add_argument("--think", action="store_true", help="with --chat: let the model reason first")
    tried.add_argument("--tokens", metavar="K", help="at most so many in an answer (default: 200)")
    tried.add_argument("--temperature", metavar="T", help="0 (default): the likeliest token each time")
    tried.add_argument("--no-base", action="store_true", help="leave the base model's answer out")
    tried.add_argument("--picture", metavar="FILE", action="append", default=[], help="may be repeated")
    tried.add_argument("--export", choices=("merged", "adapter", "model"), help="write the weights so")
    tried.add_argument("--output", metavar="FOLDER", help="for --export: a new folder")
    tried.add_argument("--json", action="store_true", help="print one message a line, as JSON")
    _add_python(tried)

    attach = command("attach", "far:attach", "mirror a run of another machine, over your own ssh")
    attach.add_argument(
        "address",
        metavar="[USER@]HOST:RUN",
        nargs="?",
        help="HOST: alone lists its runs; without it the hosts of ~/.ssh/config are listed",
    )
    attach.add_argument("--json", action="store_true", help="print one event per line, as JSON")
    _add_far_command(attach)

    relay = command("relay", "far:relay", "hand a run's events on to another machine (started by attach)")
    relay.add_argument("run", metavar="RUN", help=RUN_HELP)
    relay.add_argument("--after", metavar="SEQ", type=int, default=0, help="number of the last known event")

    export = command("export", "export:export", "write a run's measurements to files")
    export.add_argument("run", metavar="RUN", help=RUN_HELP)
    export.add_argument(
        "--format", choices=("csv", "parquet"), default="csv", help="csv (default) or parquet"
    )
    export.add_argument(
        "--output", metavar="FOLDER", help="where to; by default a new folder named after the run"
    )

    page = command("report", "report:report", "write a run as one page that opens offline in a browser")
    page.add_argument("run", metavar="RUN", help=RUN_HELP)
    page.add_argument("--output", "-o", metavar="FILE", help="by default RUN-report.html here")
    page.add_argument("--force", action="store_true", help="overwrite an existing file")

    doctor = command("doctor", "doctor:doctor", "report what this machine can do, and why not")
    doctor.add_argument(
        "--python", metavar="PATH", help="the interpreter to look at; by default gradacc's own"
    )
    doctor.add_argument("--json", action="store_true", help="print it as JSON")

    new = command("new", "recipes:new", "write a template for your own task")
    new.add_argument("what", choices=("task",), metavar="task", help="task: your own model, data and loss")
    new.add_argument("path", metavar="PATH", help="the Python file to write; a recipe is written beside it")

    bring = command("import", "recipes:import_file", "make a recipe from another trainer's configuration")
    bring.add_argument(
        "file", metavar="FILE", help="TrainingArguments, TRL, LLaMA-Factory, Axolotl, accelerate, DeepSpeed"
    )
    bring.add_argument("--output", "-o", metavar="RECIPE", help="the recipe; by default FILE with .toml")
    bring.add_argument("--force", action="store_true", help="overwrite an existing recipe")
    bring.add_argument(
        "--json",
        action="store_true",
        help="print recipe and account as one JSON object; no recipe is written without --output",
    )


def _add_queue(command: Any) -> None:  # noqa: ANN401 - a function of the parser's
    queue = command("queue", "queue_commands:show", "start runs one after another as devices become free")
    queue.set_defaults(json=False, done=5)
    acts = queue.add_subparsers(title="commands", metavar="COMMAND")

    def act(name: str, function: str, text: str) -> argparse.ArgumentParser:
        added: argparse.ArgumentParser = acts.add_parser(
            name, help=text, description=f"{text[0].upper()}{text[1:]}."
        )
        added.set_defaults(act=f"queue_commands:{function}")
        return added

    waiting = "a waiting run: its place, its id, a unique prefix of it, or its name"
    add = act("add", "add", "add runs to the queue")
    add.add_argument(
        "recipes", metavar="RECIPE", nargs="+", help="a .toml file, - (standard input), or a run to resume"
    )
    add.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], help="change the recipes for these runs"
    )
    add.add_argument("--first", action="store_true", help="put them at the front")
    add.add_argument("--json", action="store_true", help="print one object a run, as JSON")
    _add_python(add)
    _add_far_options(add, folder=True)
    listing = act("list", "show", "show running, waiting and finished runs")
    listing.add_argument("--json", action="store_true", help="print one object, as JSON")
    listing.add_argument("--done", metavar="K", type=int, default=5, help="how many ended runs (default: 5)")
    move = act("move", "move", "move a waiting run to another place")
    move.add_argument("run", metavar="ID", help=waiting)
    move.add_argument("place", metavar="PLACE", type=int, help="its new place; 1 is next")
    remove = act("remove", "remove", "remove waiting runs from the queue")
    remove.add_argument("runs", metavar="ID", nargs="+", help=waiting)
    act("pause", "pause", "start no more runs; those that are running continue")
    act("resume", "resume", "start waiting runs again")
    change = act("set", "change", "change the queue's settings")
    change.add_argument(
        "key", metavar="KEY", choices=("on_failure", "cpu_runs", "kept_free"),
        help="on_failure (continue or pause), cpu_runs (on the CPU at once), or kept_free (devices)",
    )  # fmt: skip
    change.add_argument("value", metavar="VALUE", help="the new value; none keeps no device free")


if __name__ == "__main__":
    sys.exit(main())
