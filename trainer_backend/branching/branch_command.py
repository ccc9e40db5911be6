"""`python -m trainer_backend branch RUN`: short branches from a run's newest checkpoint, compared.

Each branch is a run of its own in a temporary folder, trained by a process of its own from a copy of the
checkpoint: the run itself is only read. Exit codes: 0 compared, 1 a branch failed, 2 refused.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from trainer_backend.branching.branches import (
    Branch,
    BranchEnd,
    BranchReport,
    branches_of,
    edit_for_branch,
    mean_of_last,
    samples_for_branches,
    table,
    verdict,
)
from trainer_backend.errors import GradaccError, UsageError
from trainer_backend.journal_reader import JournalReader
from trainer_backend.lost_history import begin_new_history
from trainer_backend.protocol import EvaluationMeasured, OptimizerStepMeasured, RunFailed, RunFinished
from trainer_backend.recipe import parse_document, save_recipe
from trainer_backend.run_directory import RunDirectory, checkpoints_in, find_run
from trainer_backend.settings import Settings, settings_of


def main(argv: Sequence[str]) -> int:
    """Branch as `argv` (behind the word branch) asks; gives the exit code."""
    options = _parser().parse_args(argv)
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):
        try:
            report = compare(find_run(options.run), samples=options.samples, device=options.device)
        except GradaccError as error:
            sys.stderr.write(f"{error}\n")
            return error.exit_code
        except KeyboardInterrupt:
            return 1
    lines = [verdict(report), "", *table(report), "", _how(report)]
    print(msgspec.json.encode(report).decode() if options.json else "\n".join(lines), file=out, flush=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer_backend branch",
        description="Train on from the newest checkpoint at 1/2, 1, 2 and 4 times the effective batch.",
    )
    parser.add_argument("run", metavar="RUN", help="a run's directory or its id")
    parser.add_argument("--samples", type=int, metavar="K", help="that each branch consumes")
    parser.add_argument("--device", help="instead of the run's own")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser


def _how(report: BranchReport) -> str:
    return (
        f"From step {report.from_step:,}, each over the same {report.samples:,} samples; learning rate and"
        " companions by the recipe's rules (accumulation.learning_rate_rule and the like)."
    )


def compare(run: RunDirectory, *, samples: int | None, device: str | None) -> BranchReport:
    """Train every branch, one after the other. Raises GradaccError with what one of them said."""
    from trainer_backend.trainer import checkpoint  # noqa: PLC0415 - torch, seconds

    found = checkpoints_in(run.checkpoints_path)
    if not found:
        message = f"{run.id} has no checkpoint yet to branch from. Save one: gradacc checkpoint {run.typed}"
        raise UsageError(message)
    recipe = run.recipe()
    if recipe.config.run.devices > 1:
        message = f"{run.id} trains on {recipe.config.run.devices} devices; branches are tried on one only."
        raise UsageError(message)
    step = max(found)
    saved = checkpoint.read(found[step])
    settings = msgspec.convert(saved.state["standing"]["settings"], Settings)
    seen: int = saved.state["samples_seen"]
    many = samples_for_branches(settings, samples)
    ends = []
    with tempfile.TemporaryDirectory(prefix="gradacc-branch-") as folder:
        for branch in branches_of(settings, recipe.config.accumulation):
            document = parse_document(recipe.text)
            edit_for_branch(document, branch, until=seen + many, device=device)
            place = RunDirectory.create("", name="branch", parent=Path(folder))
            save_recipe(document, place.recipe_path)
            standing = saved.state["standing"] | {
                "settings": msgspec.to_builtins(branch.settings),
                "recipe": msgspec.to_builtins(settings_of(place.recipe().config)),
            }
            state = saved.state | {"standing": standing}
            checkpoint.write(place.checkpoints_path, step, msgspec.structs.replace(saved, state=state))
            begin_new_history(place)
            sys.stderr.write(f"Effective batch {branch.settings.effective_batch:,} …\n")
            ends.append(_trained(place, branch, step))
    measure = "training" if any(end.loss_error is not None for end in ends) else "validation"
    return BranchReport(from_step=step, from_samples=seen, samples=many, measure=measure, ends=tuple(ends))


def run_to_end(run: RunDirectory) -> str:
    """Train it in a process of its own; gives what that said of errors."""
    command = [sys.executable, "-P", "-m", "trainer_backend", "run", str(run.path)]
    done = subprocess.run(command, capture_output=True, check=False)
    return done.stderr.decode("utf-8", "replace")


def _trained(run: RunDirectory, branch: Branch, from_step: int) -> BranchEnd:
    """Train one branch to its end in a process of its own. Raises GradaccError."""
    began = time.monotonic()
    words = run_to_end(run)
    reader = JournalReader(run.journal_path)
    try:
        events = [record.event for record in reader.read(0, 10_000_000).records()]
    finally:
        reader.close()
    if not any(isinstance(event, RunFinished) for event in events):
        failed = next((event.reason for event in events if isinstance(event, RunFailed)), "")
        said = failed or (words.strip().splitlines() or ["It said nothing."])[-1]
        message = f"The branch of effective batch {branch.settings.effective_batch} did not end well: {said}"
        raise GradaccError(message)
    steps = [event for event in events if isinstance(event, OptimizerStepMeasured) and event.step > from_step]
    checked = [event.loss for event in events if isinstance(event, EvaluationMeasured)]
    if checked:
        loss, error = checked[-1], None
    else:
        loss, error = mean_of_last([(each.loss, each.samples) for each in steps if each.loss is not None])
    return BranchEnd(
        factor=branch.factor, effective_batch=branch.settings.effective_batch,
        accumulation_steps=branch.settings.accumulation_steps, learning_rate=branch.settings.learning_rate,
        optimizer_steps=len(steps), samples=sum(each.samples for each in steps), loss=loss, loss_error=error,
        duration_s=time.monotonic() - began,
    )  # fmt: skip
