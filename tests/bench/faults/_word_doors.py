"""Doors of words: what is typed after `gradacc`, and what stands in the environment."""

from __future__ import annotations

import errno
import io
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, Final
from unittest import mock

import msgspec

from gradacc_gui.cli import main
from gradacc_gui.commands import open_window
from gradacc_gui.person import person
from gradacc_gui.session.interpreter import cleaned_environment
from tests.bench.faults._file_doors import check_sentence
from tests.bench.faults._mutations import ODD_TEXTS
from tests.bench.faults._trying import Attempt
from tests.support.fake_runs import Plan, write_run
from tests.support.trainers import ROOT
from trainer_backend import torchrun
from trainer_backend.__main__ import main as trainer_main
from trainer_backend.errors import GradaccError
from trainer_backend.readings.describe import describe_devices
from trainer_backend.readings.visible import visible_devices
from trainer_backend.run_directory import RunDirectory, all_runs
from trainer_backend.trainer import attempt as attempts

CODES: Final = (0, 1, 2, 130)
_AWAY: Final = frozenset(("/", "..", "~", "$HOME"))
"""Words that would name what lies outside the attempt's folder."""
_HERE: Final = tuple(word for word in ODD_TEXTS if word not in _AWAY)
_LINES: Final = (
    "run RECIPE", "run RECIPE --json --detach", "run RECIPE --set KEY=VALUE", "resume RUN",
    "resume RUN --from-step NUMBER",
    "set RUN KEY VALUE --timeout NUMBER", "set RUN KEY VALUE --learning-rate-rule WORD --timeout NUMBER",
    "runs", "runs --json",
    "pause RUN --timeout NUMBER", "checkpoint RUN --timeout NUMBER --json", "stop RUN --now --timeout NUMBER",
    "rollback RUN NUMBER --timeout NUMBER", "show RUN", "show RUN --json", "show RUN --follow",
    "export RUN --format csv",
    "export RUN --format parquet --output OUT", "verify RECIPE --steps WORD --samples NUMBER",
    "check RECIPE --json",
    "doctor --python WORD --json", "new task OUT", "queue list", "queue add RECIPE", "queue remove RUN",
    "queue move RUN NUMBER",
    "queue pause", "queue resume", "import FILE --output OUT --force",
    "import FILE --json", "--version", "",
)  # fmt: skip
_TRAINER_LINES: Final = (
    "run RECIPE --set KEY=VALUE",
    "run RUN --from-step NUMBER",
    "run RUN --stale WORD",
    "run WORD",
)
_NUMBERS: Final = ("0", "1", "-1", "3", "nan", "inf", "-inf", "1e9", "0.01", "9" * 5_000, "1_0", "x", "")
_NAMES: Final = (
    "GRADACC_HOME", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "WORLD_SIZE", "RANK", "SLURM_NTASKS",
    "COLUMNS", "LINES", "LANG", "LC_ALL", "TZ", "USER", "LOGNAME", "HOME", "XDG_DATA_HOME", "TERM",
    "NO_COLOR", "FORCE_COLOR", "PYTHONPATH", "VIRTUAL_ENV", "HF_HUB_OFFLINE", "QT_X", "TMPDIR", "HOSTNAME",
)  # fmt: skip
_UUIDS: Final = ("GPU-aaaa-1", "GPU-aaab-2", "GPU-b")


@contextmanager
def _alone() -> Iterator[None]:
    """Inside, no process is started and no window opened."""

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOENT, os.strerror(errno.ENOENT))

    def no_attempt(*_: object, **__: object) -> None:
        raise GradaccError("Nothing is trained here.")

    with ExitStack() as stack:
        for owner, name, other in (
            (subprocess, "Popen", refuse),
            (open_window, "open_window", lambda _arguments: 0),
            (attempts, "run_attempt", no_attempt),
        ):
            stack.enter_context(mock.patch.object(owner, name, other))
        yield


def _said(command: Any, words: list[str]) -> str:
    """What a command prints; it must end with one of the codes that are documented."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            code = command(words)
        except SystemExit as end:  # argparse
            code = end.code
    assert code in CODES, (code, words)
    if code == 2:
        check_sentence(err.getvalue() + out.getvalue(), words)
    return out.getvalue() + err.getvalue()


def command_line(folder: Path) -> Attempt:
    """Commands with made-up words: a sentence and a documented exit code, and nothing that moves a cursor."""
    short = Plan(steps=3, checkpoint_every=0, evaluate_every=2)
    runs = [
        write_run(folder / "runs", msgspec.structs.replace(short, name=name, end=end))
        for name, end in (("done", "finished"), ("gone", ""), ("\x1b[31mred\x07", "failed"), ("live", ""))
    ]
    damaged = RunDirectory.create("[run]\nname = 'damaged'\n", name="damaged")
    damaged.journal_path.write_bytes(b"no journal")
    work = folder / "work"
    kept = {
        "recipe.toml": (ROOT / "assets/recipes/stdlib-gpt.toml").read_bytes(),
        "import.yaml": (ROOT / "tests/data/door/I01.yaml").read_bytes(),
    }
    places = {
        "RUN": [run.id for run in (*runs, damaged)] + ["done", "live", "gone", "damaged", "d",
        str(runs[0].path)],
        "RECIPE": ["recipe.toml", "import.yaml", "nowhere.toml", str(runs[1].recipe_path), "."],
        "FILE": ["import.yaml", "recipe.toml", "nowhere.yaml", "."],
        "OUT": ["out", "out.py", "out/deep/x.py", "recipe.toml", "a" * 300, "é", "."],
        "KEY": ["gradient_accumulation_steps", "learning_rate", "optimizer.max_grad_norm", "run.name",
        "a.b.c", "."],
        "NUMBER": _NUMBERS, "VALUE": (*_NUMBERS, "none", '"x"', "[1]", "{}"), "WORD": _HERE,
    }  # fmt: skip

    def attempt(draw: random.Random) -> None:
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        for name, content in kept.items():
            (work / name).write_bytes(content)
        os.chdir(work)
        is_trainer = draw.random() < 0.15
        line = draw.choice(_TRAINER_LINES if is_trainer else _LINES)
        words = [_filled(draw, word, places) for word in line.split()]
        if draw.random() < 0.3:
            more = draw.choice((*_HERE, "--json", "--now", "--x", "-h", "--set"))
            words.insert(draw.randint(0, len(words)), more)
        if words and draw.random() < 0.15:
            del words[draw.randrange(len(words))]
        if any(word in ("set", "pause", "checkpoint", "stop", "rollback", "resume") for word in words):
            words += ["--timeout", draw.choice(("0", "-1", "nan"))] if "resume" not in words else []
        words = [word for word in words if "\x00" not in word]  # no system hands one over
        follows = any(word.startswith("--f") for word in words)  # a live run's end would be waited for
        with _alone(), nullcontext() if follows else runs[3].locked():
            text = _said(trainer_main if is_trainer else main, words)
        if not is_trainer:
            assert not set(text) & {"\x1b", "\x07", "\x9b", "\u202e"}, text

    return attempt


def _filled(draw: random.Random, word: str, places: Mapping[str, Sequence[str]]) -> str:
    """A word of a line with its places filled, mostly with what belongs there."""
    for place, choices in places.items():
        if place in word:
            return word.replace(place, draw.choice(choices if draw.random() < 0.75 else _HERE))
    return word


def environment(folder: Path) -> Attempt:
    """Variables of odd content: a look at runs and devices works, or says why it does not."""
    before = dict(os.environ)
    homes = ("home", "é", "\x1b[2J", "a" * 300, "file", "file/x", "~nobody", "~", "  ", "x" * 5_000, "loop")
    (folder / "file").write_text("", "utf-8")
    (folder / "loop").symlink_to(folder / "loop")

    def attempt(draw: random.Random) -> None:
        os.chdir(folder)
        home = draw.choice(homes)
        changed = {"GRADACC_HOME": home if home.startswith("~") else str(folder / home)}
        for name in draw.sample(_NAMES, draw.randint(1, 4)):
            value = _value(draw).replace("\x00", "")
            if name not in ("GRADACC_HOME", "HOME", "XDG_DATA_HOME", "TMPDIR") or draw.random() < 0.2:
                changed[name] = str(folder / "x" / value[:20]) if name in ("HOME", "XDG_DATA_HOME") else value
        try:
            os.environ.update({name: value for name, value in changed.items() if name != "TMPDIR"})
            with _alone():
                _look(draw, changed.get("CUDA_VISIBLE_DEVICES"))
        finally:
            os.environ.clear()
            os.environ.update(before)

    return attempt


def _look(draw: random.Random, visible: str | None) -> None:
    described = describe_devices()
    assert described.visible_variable == visible
    for device in visible_devices(visible, _UUIDS):
        assert isinstance(device, str) or 0 <= device < len(_UUIDS)
    cleaned_environment()
    person().encode("utf-8")
    for look in (lambda: torchrun.place_of(os.environ), all_runs):
        try:
            look()
        except GradaccError as error:
            check_sentence(str(error))
    _said(main, draw.choice((["runs"], ["runs", "--json"], ["show", "x"], ["--help"], ["export", "x"])))
    if draw.random() < 0.1:
        try:
            RunDirectory.create("", name=_value(draw))
        except GradaccError as error:
            check_sentence(str(error))


def _value(draw: random.Random) -> str:
    if draw.random() < 0.3:
        return os.fsdecode(draw.randbytes(draw.randint(0, 12)).replace(b"\x00", b""))
    parts = (
        *ODD_TEXTS,
        "GPU-",
        "GPU-aaa",
        "MIG-",
        "MIG-x/1/0",
        "0",
        "1",
        "2",
        ",",
        "+1",
        "-1",
        "٣",
        "²",
        "cuda:0",
    )
    text = "".join(draw.choice(parts) for _ in range(draw.randint(1, 4)))
    return os.fsdecode(text.encode("utf-8", "surrogatepass"))


if sys.platform == "win32":
    raise SystemExit("The doors are tried where variables are bytes.")
