"""`python -m trainer_backend try RUN`: ask a run's newest checkpoint, beside the model it started from.

With `--stream` it keeps the model and answers questions that come as lines of JSON on standard input.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TextIO, assert_never

import msgspec

from trainer_backend.errors import GradaccError
from trainer_backend.trying.try_messages import (
    Answered,
    AnswerPart,
    AnyQuestion,
    AnyTryMessage,
    HandedOver,
    HandOver,
    Look,
    Opened,
    PictureClasses,
    Prompt,
    TryProgress,
    TryRefused,
    Who,
    Written,
    decode_question,
    encode_try,
)

if TYPE_CHECKING:
    from trainer_backend.trying.opened_run import OpenedRun

CLASSES_SHOWN: Final = 5
Tell = Callable[[AnyTryMessage], None]


def main(argv: Sequence[str]) -> int:
    """Answer what `argv` (behind the word try) asks; gives the exit code."""
    parser = _parser()
    options = parser.parse_args(argv)
    questions = list(_asked(options))
    if not questions and not options.stream:
        parser.error("nothing is asked; give --prompt, --picture or --export")
    teller = _Teller(options, sys.stdout)
    with contextlib.redirect_stdout(sys.stderr):  # what libraries and the user's own code print
        try:
            if not options.stream:
                return _answer_all(Path(options.run), questions, teller)
            return _answer_all(Path(options.run), map(decode_question, sys.stdin.buffer), teller)
        except KeyboardInterrupt:
            return 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m trainer_backend try",
        description="Ask a run's newest checkpoint, or write its weights for other programs.",
    )
    parser.add_argument("run", metavar="RUN", help="a run's id, or its directory")
    parser.add_argument("--prompt", action="append", default=[], metavar="TEXT", help="may be repeated")
    parser.add_argument(
        "--chat", action="store_true", help="pose prompts as a user's message, by the chat template"
    )
    parser.add_argument("--think", action="store_true", help="with --chat: let the model reason first")
    parser.add_argument("--tokens", type=int, default=200, metavar="K", help="at most so many (default: 200)")
    parser.add_argument(
        "--temperature",
        type=float,
        default=0.0,
        metavar="T",
        help="0 (default): the likeliest token each time",
    )
    parser.add_argument("--no-base", action="store_true", help="leave the base model's answer out")
    parser.add_argument("--picture", action="append", default=[], metavar="FILE", help="may be repeated")
    parser.add_argument("--export", choices=("merged", "adapter", "model"), help="write the weights so")
    parser.add_argument("--output", metavar="FOLDER", help="for --export: a new folder")
    parser.add_argument("--json", action="store_true", help="print one message a line, as JSON")
    parser.add_argument("--stream", action="store_true", help=argparse.SUPPRESS)
    return parser


def _asked(options: argparse.Namespace) -> Iterator[AnyQuestion]:
    for text in options.prompt:
        yield Prompt(
            text=text,
            as_chat=options.chat,
            thinks=options.think,
            most_tokens=options.tokens,
            temperature=options.temperature,
            with_base=not options.no_base,
        )
    for path in options.picture:
        yield Look(path=path)
    if options.export:
        yield HandOver(
            what=options.export, folder=options.output or f"{Path(options.run).name}-{options.export}"
        )


def _answer_all(run: Path, questions: Iterator[AnyQuestion] | Sequence[AnyQuestion], teller: _Teller) -> int:
    """Open the run, then answer each question; a refused one does not end the others."""
    teller.tell(TryProgress(code="importing-torch"))
    from trainer_backend.run_directory import RunDirectory, find_run  # noqa: PLC0415 - after the first word
    from trainer_backend.trying.opened_run import open_run, what_it_takes  # noqa: PLC0415 - torch, seconds

    try:
        found = RunDirectory(run) if run.is_dir() else find_run(str(run))
        teller.tell(TryProgress(code="opening-run"))
        opened = open_run(found)
    except Exception as error:  # noqa: BLE001 - the user's own code and libraries raise anything
        teller.tell(TryRefused(message=sentence(error)))
        return error.exit_code if isinstance(error, GradaccError) else 1
    teller.tell(what_it_takes(opened))
    with tempfile.TemporaryDirectory(prefix="gradacc-try-") as folder:
        for question in questions:
            try:
                _answer(opened, question, Path(folder), teller.tell)
            except Exception as error:  # noqa: BLE001 - likewise
                teller.tell(TryRefused(message=sentence(error)))
            teller.tell(Answered())
    return 1 if teller.refused else 0


def _answer(opened: OpenedRun, question: AnyQuestion, folder: Path, tell: Tell) -> None:
    match question:
        case Prompt():
            _write(opened, question, tell)
        case Look(path=path):
            tell(TryProgress(code="looking"))
            _check_takes(opened, "picture")
            shares, picture = opened.task.recognise(opened.model, Path(path).expanduser(), folder)
            tell(PictureClasses(shares=shares, picture="" if picture is None else str(picture)))
        case HandOver(what=what, folder=target):
            from trainer_backend.trying.hand_over import hand_over  # noqa: PLC0415 - torch

            tell(TryProgress(code="exporting"))
            if what not in getattr(opened.task, "exports", ()):
                message = f"This run's weights cannot be written as {what}: {_offers(opened)}."
                raise GradaccError(message)
            tell(hand_over(opened, what, Path(target)))
        case _:
            assert_never(question)


def _offers(opened: OpenedRun) -> str:
    offers = getattr(opened.task, "exports", ())
    return f"it offers {' and '.join(offers)}" if offers else "its kind of task offers none"


def _check_takes(opened: OpenedRun, wanted: str) -> None:
    from trainer_backend.trying.opened_run import what_it_takes  # noqa: PLC0415 - torch

    takes = what_it_takes(opened).takes
    if takes != wanted:
        kind = opened.recipe.config.kind
        message = f'A run of kind = "{kind}" takes no {wanted}{f", but a {takes}" * (takes != "nothing")}.'
        raise GradaccError(message)


def _write(opened: OpenedRun, question: Prompt, tell: Tell) -> None:
    _check_takes(opened, "prompt")
    task, model = opened.task, opened.model
    tell(TryProgress(code="writing"))
    tell(_written(opened, "run", model, question, tell))
    if not question.with_base or not hasattr(task, "base_model"):
        return
    tell(TryProgress(code="opening-base"))
    try:
        with task.base_model(model) as base:
            tell(TryProgress(code="writing"))
            tell(_written(opened, "base", base, question, tell))
    except Exception as error:  # noqa: BLE001 - too little memory for a second model: the run has answered
        tell(TryRefused(message=sentence(error), who="base"))


def _written(opened: OpenedRun, who: Who, model: object, question: Prompt, tell: Tell) -> Written:
    import torch  # noqa: PLC0415 - loaded by now

    torch.manual_seed(opened.recipe.config.run.seed)  # both draw alike
    began = time.perf_counter()
    found = opened.task.write(
        model,
        question.text,
        as_chat=question.as_chat,
        thinks=question.thinks,
        most_tokens=question.most_tokens,
        temperature=question.temperature,
        on_text=lambda text: tell(AnswerPart(who=who, text=text)),
    )
    duration_s = time.perf_counter() - began
    return Written(who=who, text=found.text, tokens=found.tokens, duration_s=duration_s, ended=found.ended)


def sentence(error: Exception) -> str:
    """What went wrong, as a person reads it."""
    if isinstance(error, GradaccError):
        return str(error)
    from trainer_backend.engine.memory import is_out_of_memory  # noqa: PLC0415 - torch

    if is_out_of_memory(error):
        return (
            "There is not enough memory for this model beside what else runs here. Close something, or wait."
        )
    if isinstance(error, msgspec.MsgspecError):
        return f"The question cannot be read: {error}."
    first = next(iter(str(error).strip().splitlines()), "")
    return f"{type(error).__name__}: {first or 'no message'}"


class _Teller:
    """Messages as lines of JSON, or as text for a terminal."""

    def __init__(self, options: argparse.Namespace, out: TextIO) -> None:
        self._is_json = options.json or options.stream
        self._out = out
        self.refused = False

    def tell(self, message: AnyTryMessage) -> None:
        """Write one message."""
        self.refused |= isinstance(message, TryRefused)
        text = encode_try(message).decode() if self._is_json else said(message)
        if text:
            self._out.write(f"{text}\n")
            self._out.flush()


def said(message: AnyTryMessage) -> str:
    """A message for a terminal; empty for what need not be said there."""
    match message:
        case Opened(step=step, device=device):
            return f"Checkpoint of step {step:,}" + (f", on {device}" if device else "")
        case Written(who=who, text=text):
            return f"\n{'This run' if who == 'run' else 'Base model'}:\n{text}"
        case PictureClasses(shares=shares, picture=picture):
            lines = [f"{share:7.1%}  {name}" for name, share in shares[:CLASSES_SHOWN]]
            return "\n".join([*lines, picture] if picture else lines)
        case HandedOver(folder=folder, size_bytes=size_bytes, commands=commands):
            lines = [f"{folder}: {size_bytes / 1e6:,.1f} MB"]
            if commands:
                lines += ["For a GGUF file:", *(f"  {command}" for command in commands)]
            return "\n".join(lines)
        case TryRefused(message=words, who=who):
            return f"The base model gives no answer. {words}" if who == "base" else words
        case TryProgress() | AnswerPart() | Answered():
            return ""
        case _:
            assert_never(message)
