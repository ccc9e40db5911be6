"""`python -m trainer_backend verify RECIPE`: make a certificate, print it, save it.

With --json stdout has one object a line: `VerifyProgress` as it goes on, then one `VerifyReport` or
`VerifyFailed`; what the user's own code prints goes to stderr. Exit codes: 0 the verdict is the one
that the recipe declares, 1 it is another (or none could be made), 2 bad usage or configuration.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, NoReturn, TextIO

import msgspec

from trainer_backend.errors import GradaccError, UsageError
from trainer_backend.private_files import expanded
from trainer_backend.published import beside_own, lines
from trainer_backend.verify import sentences
from trainer_backend.verify.html import save
from trainer_backend.verify.report import (
    AnyMessage,
    Remark,
    VerifyFailed,
    VerifyProgress,
    VerifyReport,
    encode,
)

if TYPE_CHECKING:
    from trainer_backend.recipe import Recipe

STEPS: Final = (2, 4, 8)
SAMPLES: Final = 16
"""So few that a minute is enough, and so many that N = 8 has ragged parts."""
LARGEST_SAMPLES: Final = 100_000


class _Usage(Exception):  # noqa: N818 - argparse's own way out, as a value
    """The command line was refused, or help was printed; argparse has said so."""

    def __init__(self, code: int) -> None:
        super().__init__()
        self.code = code


def main(argv: Sequence[str]) -> int:
    """Make a certificate as `argv` (behind the word verify) asks; gives the exit code."""
    try:
        options = parse(argv)
    except _Usage as usage:
        return usage.code
    out = Out(sys.stdout, as_json=options.json)
    with contextlib.redirect_stdout(sys.stderr):
        try:
            return _made(options, out)
        except KeyboardInterrupt:
            out.write(VerifyFailed(message="Cancelled. No certificate was made."))
            return 1


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The command line's options. Raises _Usage when argparse has refused it or printed help."""
    parser = _Parser(
        prog="python -m trainer_backend verify",
        description="Prove that N micro-batches give the gradient of one large batch, for a recipe.",
    )
    parser.add_argument("recipe", metavar="RECIPE", help="a recipe file, or a run's directory")
    parser.add_argument("--json", action="store_true", help="one JSON object per line on stdout")
    parser.add_argument(
        "--report",
        action="append",
        default=[],
        metavar="FILE",
        help="save as a page, or as JSON if it ends in .json",
    )
    parser.add_argument(
        "--steps", type=_steps, metavar="N,N,…", help="which N (default: 2, 4, 8 and the recipe's)"
    )
    parser.add_argument(
        "--samples",
        type=_samples,
        metavar="K",
        help=f"in the large batch (default: {SAMPLES}, fewer where those would take minutes)",
    )
    try:
        return parser.parse_args(argv)
    except SystemExit as ended:
        raise _Usage(int(ended.code or 0)) from None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """One sentence, without this program's name: `gradacc verify` hands its arguments on to here."""
        self.exit(2, f"{message[0].upper()}{message[1:]}. Try --help.\n")


def _steps(text: str) -> tuple[int, ...]:
    try:
        found = tuple(sorted({int(word) for word in text.split(",")}))
    except ValueError:
        found = ()
    if not found or found[0] < 2 or found[-1] > LARGEST_SAMPLES:
        message = f"{text!r} is not a list of whole numbers from 2 to {LARGEST_SAMPLES:,}, such as 2,4,8"
        raise argparse.ArgumentTypeError(message)
    return found


def _samples(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 2 <= int(text) <= LARGEST_SAMPLES:
        message = f"{text!r} is not a whole number from 2 to {LARGEST_SAMPLES:,}"
        raise argparse.ArgumentTypeError(message)
    return int(text)


class Out:
    """Where progress and the certificate are written."""

    def __init__(self, stream: TextIO, *, as_json: bool) -> None:
        self._stream = stream
        self._as_json = as_json

    def write(self, message: AnyMessage) -> None:
        """One line of JSON; or progress on stderr, the certificate as text."""
        if self._as_json:
            self._stream.write(f"{encode(message).decode()}\n")
            self._stream.flush()
            return
        match message:
            case VerifyProgress():
                share = f"[{message.done + 1}/{message.of}] " if message.code == "comparing" else ""
                sys.stderr.write(f"{share}{sentences.progress(message)}\n")
            case VerifyFailed():
                sys.stderr.write(f"{message.message}\n")
            case VerifyReport():
                self._stream.write(f"{text(message)}\n")


def _made(options: argparse.Namespace, out: Out) -> int:
    try:
        for path in options.report:
            _check_target(Path(path))
        recipe = _recipe(expanded(options.recipe))
        report = make(recipe, options, out)
        for path in options.report:
            save(report, Path(path))
    except GradaccError as error:
        out.write(VerifyFailed(message=str(error)))
        return error.exit_code
    except Exception as error:  # noqa: BLE001 - the user's own code may raise anything: it becomes a sentence with its place
        from trainer_backend.trainer.failures import print_whole, sentence_of  # noqa: PLC0415 - torch is paid for

        print_whole(error)
        out.write(VerifyFailed(message=sentence_of(error)))
        return 1
    out.write(report)
    return 0 if report.as_declared else 1


def _recipe(path: Path) -> Recipe:
    from trainer_backend.recipe import load_recipe  # noqa: PLC0415 - `--help` pays for none of it

    return load_recipe(path / "recipe.toml" if path.is_dir() else path)


def make(recipe: Recipe, options: argparse.Namespace, out: Out) -> VerifyReport:
    """From a recipe to its certificate."""
    out.write(VerifyProgress(code="importing-torch"))
    # Here, not above: `--help` and a wrong recipe pay for none of it.
    from trainer_backend.tasks.making import collate_of, datasets_of, make_task  # noqa: PLC0415
    from trainer_backend.trainer.devices import (  # noqa: PLC0415
        apply_process_settings,
        choose_device,
        choose_precision,
        prepare_environment,
    )
    from trainer_backend.verify.certificate import certify  # noqa: PLC0415
    from trainer_backend.verify.sizing import fit_samples  # noqa: PLC0415
    from trainer_backend.verify.subject import Subject, take_samples  # noqa: PLC0415

    config = recipe.config
    prepare_environment(config.run)
    device = choose_device(config.run.device)
    apply_process_settings(config.run, device)
    warned: dict[str, Remark] = {}  # by code: a task may say one thing of each of its data sets
    out.write(VerifyProgress(code="reading-data"))
    task = make_task(
        recipe, lambda code, _: warned.update({code: Remark(code="task-warned", values={"code": code})})
    )
    steps = options.steps or tuple(sorted({*STEPS, *_own_steps(config.accumulation_steps)}))
    many = options.samples or max(SAMPLES, *steps)
    samples, decoys = take_samples(datasets_of(task).train, many, seed=config.run.seed)
    out.write(VerifyProgress(code="building-model"))
    subject = Subject(
        task, samples, decoys, collate=collate_of(task), device=device,
        precision=choose_precision(config.run.precision, device),
        gradient_dtype=config.accumulation.gradient_dtype,
        micro_batch_size=config.accumulation.micro_batch_size,
    )  # fmt: skip
    said: list[Remark] = []
    if options.samples is None:
        out.write(VerifyProgress(code="choosing-size"))
        said += [remark for remark in [fit_samples(subject)] if remark is not None]
    report = certify(subject, steps=steps, expected=config.accumulation.verdict, on_progress=out.write)
    name = config.run.name or Path(options.recipe).name
    return msgspec.structs.replace(
        report, recipe=name, kind=config.kind, remarks=(*said, *report.remarks, *warned.values()),
        published_source=config.published.source, published=tuple(beside_own(config)),
    )  # fmt: skip


def _own_steps(steps: int) -> tuple[int, ...]:
    """The recipe's own N, where so few samples can show it."""
    return (steps,) if 2 <= steps <= SAMPLES else ()


# ------------------------------------------------------------------------------------------- reports


def _check_target(path: Path) -> None:
    """Refuse a report's place before a minute is spent."""
    folder = expanded(path).absolute().parent
    if not folder.is_dir():
        message = f"--report {path}: there is no folder {folder}. Make it, or choose another."
        raise UsageError(message)
    if path.is_dir():
        message = f"--report {path} is a folder. Give a file, such as {path / 'certificate.html'}."
        raise UsageError(message)


def text(report: VerifyReport) -> str:
    """A certificate for a terminal."""
    said = [f"{report.recipe}: {sentences.headline(report)}", sentences.meaning(report), ""]
    for entry in report.culprits:
        sentence, remedy = sentences.culprit(entry)
        said += [
            f"  {sentence}",
            *([f"    in: {', '.join(entry.where)}"] if entry.where else []),
            f"    {remedy}",
        ]
    said += [f"  note: {sentences.remark(entry)}" for entry in report.remarks]
    if report.culprits or report.remarks:
        said.append("")
    said.append(
        f"  {'N':>4}  {'micro-batches':<24} {'cut':<24} {'precision':<9} {'error':>8} {'limit':>8}  holds"
    )
    for row in report.comparisons:
        said.append(
            f"  {row.steps:>4}  {sentences.sizes(row)[:24]:<24} {sentences.FOLDS[row.fold]:<24} "
            f"{row.precision:<9} {sentences.small(row.error):>8} {sentences.small(row.limit):>8}  "
            f"{sentences.holds(row)}"
        )
    if report.published:
        said += ["", *lines(report.published_source, report.published)]
    return "\n".join(said)
