"""`python -m trainer_backend preview RECIPE`: the first optimizer step as the model will see it, and checks.

With --json stdout has one object: refused, said, samples, weight, window, checks. With --stream it has one
message a line while the check goes on, for a window that shows it. Exit codes: 0 nothing stops a start,
2 something does.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
from collections.abc import Sequence
from typing import Any, Final, TextIO

import msgspec

from trainer_backend.errors import GradaccError
from trainer_backend.kept_checks import keep_check
from trainer_backend.preflight.check_words import check_progress, cost, sentence, title
from trainer_backend.preflight.findings import (
    AnyCheckMessage,
    CheckFailed,
    CheckProgress,
    CheckReport,
    FirstWindow,
    MicroBatchSeen,
    PictureRow,
    TensorRow,
    TokenRow,
    as_object,
    encode_check,
)
from trainer_backend.private_files import expanded

ROWS_SHOWN: Final = 8
"""In a terminal."""
CHARACTERS_SHOWN: Final = 120
ROWS_SENT: Final = 96
TOKENS_SENT: Final = 60_000
"""To a window; the figures are those of the whole step."""
PATIENCE_S: Final = 600.0
"""For a window that asked for a process and does not need it."""
NICENESS: Final = 5
"""A check gives way to the run that trains on this machine."""
SIGNS: Final = {"ok": "  ok   ", "doubtful": "  ?    ", "stop": "  STOP ", "waits": "  -    "}


def main(argv: Sequence[str]) -> int:
    """Check as `argv` (behind the word preview) asks; gives the exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    if options.recipe is None and options.standby is None:
        parser.error("the following arguments are required: RECIPE")
    out = sys.stdout
    with contextlib.redirect_stdout(sys.stderr):  # what the user's own code prints
        try:
            if options.recipe is None:
                options.recipe = _waited_for(options.standby)
            return _checked(options, out) if options.recipe else 0
        except GradaccError as error:
            _fail(str(error), options, out)
            return error.exit_code
        except KeyboardInterrupt:
            return 1


def give_way() -> None:
    """Let the run that trains on this machine go first."""
    if hasattr(os, "nice"):
        os.nice(NICENESS)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer_backend preview",
        description="Show a recipe's first optimizer step as the model will see it, and check the rest.",
    )
    parser.add_argument("recipe", metavar="RECIPE", nargs="?", help="a recipe file, or a run's directory")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--stream", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--pictures", action="store_true", help=argparse.SUPPRESS)
    # For a window: load what a kind of task needs, and wait for the recipe's path on standard input.
    parser.add_argument("--standby", metavar="KIND", help=argparse.SUPPRESS)
    return parser


def _waited_for(kind: str) -> str:
    """Load a kind's libraries and wait; gives the path that comes, "" where none does."""
    patience = threading.Timer(PATIENCE_S, os._exit, [0])
    patience.daemon = True
    patience.start()
    from trainer_backend.preflight.first_window import load_libraries  # noqa: PLC0415 - what is waited with

    load_libraries(kind)
    path = sys.stdin.readline().strip()
    patience.cancel()
    return path


def _fail(message: str, options: argparse.Namespace, out: TextIO) -> None:
    """A recipe that is refused before anything is read."""
    if options.stream:
        _write(out, encode_check(CheckFailed(message=message)))
    elif options.json:
        _write(out, msgspec.json.encode(as_object(CheckReport(refused=message), [])))
    else:
        sys.stderr.write(f"{message}\n")


def _checked(options: argparse.Namespace, out: TextIO) -> int:
    from trainer_backend.recipe import load_recipe  # noqa: PLC0415 - `--help` pays for none of it

    path = expanded(options.recipe)
    recipe = load_recipe(path / "recipe.toml" if path.is_dir() else path)

    def tell(message: AnyCheckMessage) -> None:
        if options.stream:
            _write(out, encode_check(trimmed(message) if isinstance(message, FirstWindow) else message))
        elif isinstance(message, CheckProgress) and not options.json:
            sys.stderr.write(f"{check_progress(message)}\n")

    tell(CheckProgress(code="importing-torch"))
    from trainer_backend.preflight.examination import Examination  # noqa: PLC0415 - torch, seconds
    from trainer_backend.trainer.devices import prepare_environment  # noqa: PLC0415 - likewise

    prepare_environment(recipe.config.run)
    pictures = (
        path.parent if options.pictures else None
    )  # beside a copy of the recipe, in a folder of its own
    examination = Examination(recipe, tell, pictures=pictures, quick=options.stream)
    report = examination.run()
    keep_check(recipe, encode_check(without_rows(report)))
    if options.stream:
        _write(out, encode_check(without_rows(report)))
    elif options.json:
        _write(out, msgspec.json.encode(as_object(report, words_of(report))))
    else:
        out.write(f"{text(report)}\n")
    return 0 if report.refused is None else 2


def _write(out: TextIO, line: bytes) -> None:
    out.write(f"{line.decode()}\n")
    out.flush()


def words_of(report: CheckReport) -> list[dict[str, Any]]:
    """Each finding with its words, for programs."""
    return [
        {
            "check": finding.code,
            "state": finding.state,
            "title": title(finding),
            "sentence": sentence(finding),
            "duration_s": finding.duration_s,
            "change": None if finding.change is None else {finding.change.key: finding.change.value},
        }
        for finding in report.findings
    ]


def without_rows(report: CheckReport) -> CheckReport:
    """The report as it is kept: the data itself is not copied."""
    if report.window is None:
        return report
    bare = tuple(msgspec.structs.replace(batch, rows=()) for batch in report.window.micro_batches)
    return msgspec.structs.replace(report, window=msgspec.structs.replace(report.window, micro_batches=bare))


def trimmed(window: FirstWindow) -> FirstWindow:
    """With the rows of its first micro-batches only: as many as a person looks at."""
    kept: list[MicroBatchSeen] = []
    rows = tokens = 0
    for batch in window.micro_batches:
        count = sum(len(row.texts) for row in batch.rows if isinstance(row, TokenRow))
        if kept and (rows + len(batch.rows) > ROWS_SENT or tokens + count > TOKENS_SENT):
            kept.append(msgspec.structs.replace(batch, rows=()))
            rows = ROWS_SENT
            continue
        kept.append(batch)
        rows, tokens = rows + len(batch.rows), tokens + count
    return msgspec.structs.replace(window, micro_batches=tuple(kept))


# ------------------------------------------------------------------------------- for a terminal


def text(report: CheckReport) -> str:
    """A report for a terminal."""
    lines = [verdict(report), ""]
    if report.window is not None:
        lines += [*_window_lines(report.window), ""]
    for finding in report.findings:
        lines.append(
            f"{SIGNS[finding.state]}{title(finding)}: {sentence(finding)}  [{cost(finding.duration_s)}]"
        )
        if finding.change is not None:
            lines.append(f"         set {finding.change.key} = {finding.change.value}")
    if report.said:
        lines += ["", *(f"  {said}" for said in report.said)]
    return "\n".join(lines)


def verdict(report: CheckReport) -> str:
    """What a check amounts to, in one line."""
    stops, doubts = len(report.stops), len(report.doubts)
    warned = f"{doubts} warning{'s' * (doubts != 1)}, which do{'es' * (doubts == 1)} not prevent the start"
    if stops:
        return f"{stops} problem{'s' * (stops != 1)} to fix before starting" + (
            f"; {warned}" if doubts else ""
        )
    return f"Ready to start; {warned}" if doubts else "Ready to start"


def _window_lines(window: FirstWindow) -> list[str]:
    denominators = ", ".join(f"{name} {value:,.10g}" for name, value in window.denominators.items())
    figures = f"First optimizer step: {window.steps} micro-batches of {window.micro_batch_size}"
    if denominators:
        figures += f"; D = {denominators}"
    if window.padding_ratio:
        figures += f"; {window.padding_ratio:.0%} padding"
    lines = [figures]
    for number, row in enumerate(window.rows[:ROWS_SHOWN], 1):
        match row:
            case TokenRow():
                learnt = sum(1 for weight in row.weights if weight)
                lines.append(f"  {number}  {row.source}  {learnt} of {len(row.texts)} tokens learnt")
                lines.append(f"     {_marked(row)}")
            case PictureRow():
                shares = ", ".join(f"{name}: {share:.1%}" for name, share in row.mask_shares.items())
                size = " x ".join(map(str, row.shape))
                lines.append(f"  {number}  {row.source}  {size}  {row.label or shares}")
            case TensorRow():
                shapes = ", ".join(f"{fact.name} {list(fact.shape)} {fact.dtype}" for fact in row.tensors)
                lines.append(f"  {number}  {row.source}  {shapes}")
    return lines


def _marked(row: TokenRow) -> str:
    """What is learnt stands between ⟦ and ⟧; the middle of a long stretch is left out."""
    stretches: list[tuple[bool, str]] = []
    for token, weight in zip(row.texts, row.weights, strict=True):
        if stretches and stretches[-1][0] == bool(weight):
            stretches[-1] = (bool(weight), stretches[-1][1] + token)
        else:
            stretches.append((bool(weight), token))
    parts = [f"⟦{_cut(text)}⟧" if is_learnt else _cut(text) for is_learnt, text in stretches]
    return "".join(parts).replace("\n", "↵")


def _cut(text: str) -> str:
    half = CHARACTERS_SHOWN // 2
    return text if len(text) <= CHARACTERS_SHOWN else f"{text[:half]} … {text[-half:]}"
