"""From an exception to a `RunFailed`: a sentence, the user's file and line, the traceback folded."""

from __future__ import annotations

import re
import sysconfig
import traceback
from pathlib import Path
from typing import Final

import msgspec

from trainer_backend.errors import GradaccError, RankFailedError, UsageError
from trainer_backend.protocol import RunFailed

OUR_FOLDER: Final = Path(__file__).resolve().parent.parent
LONGEST_TRACEBACK: Final = 8_000
"""Characters kept of it."""
BATCH_NORM_OF_ONE: Final = "Expected more than 1 value per channel when training"
"""What torch says then; it has no exception of its own for it."""
_PLACE: Final = re.compile(r'File "([^"]+)", line (\d+)')


def run_failed(
    error: BaseException, *, step: int, samples_seen: int, checkpoint_step: int | None = None
) -> RunFailed:
    """How the journal tells that `error` ended the run; `checkpoint_step` can be gone back to."""
    if isinstance(error, RankFailedError) and isinstance(error.told, RunFailed):
        told = error.told
        return msgspec.structs.replace(
            told,
            step=step,
            samples_seen=samples_seen,
            reason=f"Rank {error.rank}: {told.reason}",
            values={"checkpoint_step": checkpoint_step},
        )
    own = isinstance(error, GradaccError)
    cause = error.__cause__ if own and error.__cause__ is not None else error
    return RunFailed(
        step=step,
        samples_seen=samples_seen,
        reason=sentence_of(error),
        code=code_of(error),
        values={"checkpoint_step": checkpoint_step},
        where=where(cause),
        traceback=folded(cause) if not own or error.__cause__ is not None else "",
    )


def described(error: BaseException) -> RunFailed:
    """An error as other ranks are told of it; they know themselves where they stand."""
    return run_failed(error, step=0, samples_seen=0)


def code_of(error: BaseException) -> str:
    """A short name for the kind of failure."""
    code = getattr(error, "code", None)
    if isinstance(error, GradaccError):
        return code if isinstance(code, str) else "usage" if isinstance(error, UsageError) else "refused"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return "out-of-memory"
    if isinstance(error, ImportError):
        return "import-error"
    return "exception"


def sentence_of(error: BaseException) -> str:
    """What happened, in one sentence."""
    if isinstance(error, GradaccError):
        return str(error)
    words = _last_line(error)
    if isinstance(error, ValueError) and BATCH_NORM_OF_ONE in words:
        return (
            "BatchNorm in training cannot normalize a micro-batch that has one value per channel. Use a"
            " larger accumulation.micro_batch_size with a smaller N, freeze these layers, or use GroupNorm."
        )
    place = where(error)
    return f"{words} (in {place})" if place else words


def _last_line(error: BaseException) -> str:
    """`ValueError: text`; of a loader worker's error, what it was in the worker."""
    text = str(error)
    if "Original Traceback" in text:
        lines = [line for line in text.strip().splitlines() if line.strip()]
        return lines[-1].strip()
    first = text.strip().splitlines()[0] if text.strip() else ""
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


def where(error: BaseException) -> str:
    """file:line of the deepest frame in code that is neither ours nor a library's; empty when none is."""
    if isinstance(error, SyntaxError) and error.filename and is_users(error.filename):
        return f"{error.filename}:{error.lineno}"
    places = [(frame.filename, frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
    places += [(name, int(line)) for name, line in _PLACE.findall(str(error))]
    users = [f"{name}:{line}" for name, line in places if is_users(name)]
    return users[-1] if users else ""


def is_users(filename: str) -> bool:
    """Whether a file is the user's own: not ours, not installed, not Python's."""
    if filename.startswith("<"):
        return False
    path = Path(filename).resolve()
    if path.is_relative_to(OUR_FOLDER) or "site-packages" in path.parts or "dist-packages" in path.parts:
        return False
    return not path.is_relative_to(Path(sysconfig.get_path("stdlib")).resolve())


def folded(error: BaseException) -> str:
    """The traceback, runs of frames that are not the user's folded into one line each."""
    lines: list[str] = []
    hidden = 0
    for frame in traceback.extract_tb(error.__traceback__):
        if is_users(frame.filename):
            lines += [_hidden(hidden)] if hidden else []
            hidden = 0
            lines.append(f'File "{frame.filename}", line {frame.lineno}, in {frame.name}\n    {frame.line}')
        else:
            hidden += 1
    if not lines:  # nothing of the user's: all of it says more than none
        text = "".join(traceback.format_exception(error))
        return text[-LONGEST_TRACEBACK:]
    lines += [_hidden(hidden)] if hidden else []
    lines += ["".join(traceback.format_exception_only(error)).strip()]
    return "\n".join(lines)[-LONGEST_TRACEBACK:]


def _hidden(frames: int) -> str:
    return f"… {frames} frame{'s' if frames > 1 else ''} of libraries"


def print_whole(error: BaseException) -> None:
    """The whole traceback on standard error, which is the run's log."""
    traceback.print_exception(error)
