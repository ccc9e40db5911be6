"""`gradacc set`, `pause`, `checkpoint` and `stop`: ask a live run, and print the fact that answers."""

# ruff: noqa: T201 - a command prints
from __future__ import annotations

import argparse
import difflib
import sys
from typing import Any, Final

from gradacc_gui import words
from gradacc_gui.commands.ending import end_by_force
from gradacc_gui.person import person
from gradacc_gui.session.following import NoAnswerError, ask
from gradacc_gui.session.runs import open_journal
from trainer_backend.config_check import check_value, section_types
from trainer_backend.errors import UsageError
from trainer_backend.protocol import (
    AnswerGate,
    AnyCommand,
    CommandAccepted,
    CommandRefused,
    Pause,
    Record,
    RollBack,
    SaveCheckpoint,
    SetAccumulation,
    SetLearningRate,
    SetMaxGradNorm,
    SetMicroBatchSize,
    Stop,
    record_json,
)
from trainer_backend.recipe import parse_setting
from trainer_backend.run_directory import RunDirectory, find_run
from trainer_backend.run_facts import RunFacts
from trainer_backend.settings import Settings, settings_of

KEYS: Final = {
    "gradient_accumulation_steps": "accumulation",
    "effective_batch_size": "accumulation",
    "micro_batch_size": "accumulation",
    "learning_rate": "optimizer",
    "max_grad_norm": "optimizer",
}


def change(arguments: argparse.Namespace) -> int:
    """`gradacc set RUN KEY VALUE`."""
    run = _live(arguments)
    key, value = _checked(arguments.key, arguments.value)
    return _ask(run, _command(run, key, value, arguments), arguments)


def pause(arguments: argparse.Namespace) -> int:
    """`gradacc pause RUN`."""
    return _ask(_live(arguments), Pause(asked_by=person()), arguments)


def checkpoint(arguments: argparse.Namespace) -> int:
    """`gradacc checkpoint RUN`."""
    return _ask(_live(arguments), SaveCheckpoint(asked_by=person()), arguments)


def stop(arguments: argparse.Namespace) -> int:
    """`gradacc stop RUN [--now | --by-force]`."""
    run = _live(arguments)
    if arguments.by_force:
        return end_by_force(run, arguments)
    return _ask(run, Stop(asked_by=person(), now=arguments.now), arguments)


def roll_back(arguments: argparse.Namespace) -> int:
    """`gradacc rollback RUN [STEP]`: a live run stands at a checkpoint again, and goes on from there."""
    run = _live(arguments)
    if not run.is_alive():
        message = f"{run.id} is not live. `gradacc resume {run.id} --from-step K` starts it at a checkpoint."
        raise NoAnswerError(message)
    if arguments.step is not None:
        run.check_checkpoint(arguments.step)
    command = RollBack(
        asked_by=person(),
        step=arguments.step,
        best=arguments.best,
        skip_samples=arguments.skip_samples,
        learning_rate_factor=arguments.learning_rate_factor,
    )
    return _ask(run, command, arguments)


def answer(arguments: argparse.Namespace) -> int:
    """`gradacc answer RUN continue|stop|roll-back`: what a run does that a missed target has paused."""
    command = AnswerGate(asked_by=person(), answer=arguments.answer, reason=arguments.reason)
    return _ask(find_run(arguments.run), command, arguments)


def _live(arguments: argparse.Namespace) -> RunDirectory:
    """The run that a command is for: among runs of one name, the one that is live."""
    return find_run(arguments.run, live_first=True)


def _checked(key: str, text: str) -> tuple[str, Any]:
    """The key's own name and the value in its type. Raises UsageError."""
    section, _, name = key.rpartition(".")
    if KEYS.get(name) is None or section not in ("", KEYS[name]):
        near = difflib.get_close_matches(name, KEYS, n=1)
        hint = f"Did you mean {near[0]}? " if near and name not in KEYS else ""
        message = f"{key} cannot be changed in a live run. {hint}These can: {', '.join(KEYS)}."
        raise UsageError(message)
    path = f"{KEYS[name]}.{name}"
    if name == "max_grad_norm" and text.strip().lower() in ("none", "off"):
        return name, None
    _, value = parse_setting(f"{path}={text}" if text.strip() else f'{path}=""')
    kind = section_types(None)[KEYS[name]]
    assert kind is not None
    problem = check_value(path, value, kind, name)
    if problem is not None:
        raise UsageError(problem.message)
    return name, value


def _command(run: RunDirectory, key: str, value: Any, arguments: argparse.Namespace) -> AnyCommand:  # noqa: ANN401
    match key:
        case "gradient_accumulation_steps":
            return _accumulation(value, arguments)
        case "effective_batch_size":
            return _accumulation(_steps_for(run, value), arguments)
        case "micro_batch_size":
            keep = not arguments.change_effective_batch
            return SetMicroBatchSize(size=value, keep_effective_batch=keep, asked_by=person())
        case "learning_rate":
            return SetLearningRate(value=float(value), asked_by=person())
        case _:
            return SetMaxGradNorm(value=None if value is None else float(value), asked_by=person())


def _accumulation(steps: int, arguments: argparse.Namespace) -> SetAccumulation:
    return SetAccumulation(steps=steps, learning_rate_rule=arguments.learning_rate_rule, asked_by=person())


def _steps_for(run: RunDirectory, effective_batch: int) -> int:
    """N for an effective batch, at the micro-batch size that is in force."""
    settings = _in_force(run)
    steps = settings.steps_for(effective_batch)
    if steps is None:
        one = settings.samples_a_round
        lower, upper = effective_batch // one * one, -(-effective_batch // one) * one
        message = (
            f"accumulation.effective_batch_size = {effective_batch} is not a multiple of"
            f" micro-batch size x devices = {one}. Try {f'{lower} or ' if lower else ''}{upper}."
        )
        raise UsageError(message)
    return steps


def _in_force(run: RunDirectory) -> Settings:
    """What the run's facts say; what its recipe asks for where no attempt has begun."""
    asked = settings_of(run.recipe().config)
    so_now = RunFacts(asked)
    if run.journal_path.is_file():
        with open_journal(run) as reader:
            so_now.take_all(reader.facts())
    return so_now.settings or asked


def _ask(run: RunDirectory, command: AnyCommand, arguments: argparse.Namespace) -> int:
    answer = ask(run, command, timeout_s=arguments.timeout)
    print_answer(answer, as_json=arguments.json)
    return 0 if isinstance(answer.event, CommandAccepted) else 1


def print_answer(answer: Record, *, as_json: bool) -> None:
    """The fact that answers a command, for a person or a program."""
    if as_json:
        print(record_json(answer).decode())
    elif isinstance(answer.event, CommandAccepted):
        print(f"Accepted: from optimizer step {answer.event.applies_at_step:,} on.")
    elif isinstance(answer.event, CommandRefused):
        print(words.refused(answer.event), file=sys.stderr)
