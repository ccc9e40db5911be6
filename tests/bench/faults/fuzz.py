"""Hostile inputs at each of seven doors, from a seed: `python -m tests.bench.faults.fuzz [--few K]`.

    fuzz        inputs tried, by door: recipe, inbox, journal, checkpoint, import, command_line, environment
    tracebacks  inputs that raised anything but one of our own sentences (one of each place stands above)
    hangs       inputs that took over HANG_S

Each door is tried in this process, so that an input costs microseconds to milliseconds. `--few` takes that
share of the inputs, one in K.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import torch

from gradacc_gui import cli
from gradacc_gui.commands import open_window
from gradacc_gui.importing.programs import import_config
from gradacc_gui.session.interpreter import cleaned_environment
from gradacc_gui.session.runs import summarise
from gradacc_gui.store import RunStore
from tests.support.fake_runs import Plan, write_run
from tests.support.trainers import ROOT
from trainer_backend import torchrun
from trainer_backend.errors import GradaccError
from trainer_backend.inbox import Inbox
from trainer_backend.private_files import home
from trainer_backend.readings.describe import describe_devices
from trainer_backend.recipe import parse_document, recipe_from_document
from trainer_backend.trainer import checkpoint

COUNTS: Final = {
    "recipe": 50_000,
    "inbox": 200_000,
    "journal": 8_000,
    "checkpoint": 8_000,
    "import": 8_000,
    "command_line": 20_000,
    "environment": 20_000,
}
HANG_S: Final = 10
NASTY: Final = (
    "", "0", "-1", "1e999", "nan", "-0.0", "9" * 5000, "true", "null", "~", "[]", "{}", "[[[[",
    '"', "'", "\\",
    "\x00", "\x1b[31m", "\ud800".encode("utf-8", "surrogatepass").decode("utf-8", "replace"), "✓", "..", "/",
    "../../etc/passwd", "a" * 300, "[" * 2000, "{" * 2000, "&a [*a]", "1_000", "0x10", "1979-05-27", "\r\n",
    "%s%n", "{0}", "${HOME}", "auto", "cuda:99", "18446744073709551616", "1e-400", "-", "--", "=", "a=b=c",
)  # fmt: skip


class _HungError(BaseException):
    """An input took too long."""


class Tally:
    """What came of the inputs."""

    def __init__(self) -> None:
        self.tried: dict[str, int] = {}
        self.tracebacks = self.hangs = 0
        self.kinds: dict[tuple[str, str, int], int] = {}

    def attempt(self, door: str, call: Callable[[], object], shown: Callable[[], object]) -> None:
        """Try one input; anything but success or a sentence of ours counts."""
        self.tried[door] = self.tried.get(door, 0) + 1
        signal.setitimer(signal.ITIMER_REAL, HANG_S)
        try:
            call()
        except GradaccError:
            pass
        except _HungError:
            self.hangs += 1
            print(f"{door}: hangs: {shown()!r:.300}", file=sys.stderr)
        except BaseException:  # noqa: BLE001 - that is what is looked for
            self.tracebacks += 1
            where = traceback.extract_tb(sys.exc_info()[2])[-1]
            kind = (door, where.filename, where.lineno or 0)
            self.kinds[kind] = self.kinds.get(kind, 0) + 1
            if self.kinds[kind] == 1:  # one of each place
                print(f"{door}: {shown()!r:.300}\n{traceback.format_exc()}", file=sys.stderr, flush=True)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)


def _alarm(_number: int, _frame: FrameType | None) -> None:
    raise _HungError


# ------------------------------------------------------------------------------ what is mutated


def mutated(draw: random.Random, text: str) -> str:
    """A text with some lines, words or characters changed."""
    lines = text.splitlines(keepends=True)
    for _ in range(draw.randint(1, 3)):
        place = draw.randrange(len(lines) + 1)
        match draw.randrange(6):
            case 0:
                lines[place:place] = [draw.choice(NASTY)]
            case 1:
                del lines[place : place + draw.randint(1, 3)]
            case 2 if lines:
                lines.append(draw.choice(lines))
            case 3 if place < len(lines) and "=" in lines[place]:
                lines[place] = lines[place].partition("=")[0] + "= " + draw.choice(NASTY) + "\n"
            case 4 if place < len(lines) and ":" in lines[place]:
                lines[place] = lines[place].partition(":")[0] + ": " + draw.choice(NASTY) + "\n"
            case _ if place < len(lines) and lines[place]:
                at = draw.randrange(len(lines[place]))
                lines[place] = lines[place][:at] + draw.choice(NASTY) + lines[place][at + 1 :]
    return "".join(lines)


def mutated_bytes(draw: random.Random, content: bytes) -> bytes:
    """A file with some bytes changed, cut off, or put in."""
    made = bytearray(content)
    match draw.randrange(4):
        case 0:
            return bytes(made[: draw.randrange(len(made) + 1)])
        case 1:
            at = draw.randrange(len(made) + 1)
            made[at:at] = draw.randbytes(draw.randint(1, 64))
        case _:
            for _ in range(draw.randint(1, 24) if made else 0):
                made[draw.randrange(len(made))] = draw.randrange(256)
    return bytes(made)


# ------------------------------------------------------------------------------------ the doors


def recipes(draw: random.Random, count: int, folder: Path, tally: Tally) -> None:
    """Recipe files."""
    shipped = [path.read_text("utf-8") for path in sorted((ROOT / "assets" / "recipes").glob("*.toml"))]
    for _ in range(count):
        text = mutated(draw, draw.choice(shipped))
        tally.attempt(
            "recipe",
            lambda text=text: recipe_from_document(parse_document(text), folder=folder),  # type: ignore[misc]
            lambda text=text: text,  # type: ignore[misc]
        )


def commands(draw: random.Random, count: int, folder: Path, tally: Tally) -> None:
    """Files in a run's inbox, twenty at a time."""
    inbox = folder / "inbox"
    inbox.mkdir()
    names = (
        "SetAccumulation",
        "SetLearningRate",
        "Pause",
        "Stop",
        "RollBack",
        "AnswerGate",
        "SaveCheckpoint",
    )
    for number in range(0, count, 20):
        texts = []
        for each in range(20):
            fields: dict[str, Any] = {"type": draw.choice((*names, *NASTY)), "id": draw.choice(NASTY)} | {
                draw.choice(("steps", "value", "step", "now", "answer", "asked_by")): draw.choice(
                    (0, -1, 1e308, None, True, [], {}, "x", 2**70)
                )
                for _ in range(draw.randrange(4))
            }
            text = json.dumps(fields)
            text = mutated(draw, text) if draw.random() < 0.5 else text
            texts.append(text)
            content = text.encode("utf-8", "surrogatepass")
            (inbox / f"{number:020d}-{each}.json").write_bytes(content)
        box = Inbox(inbox)
        tally.attempt("inbox", box.poll, lambda texts=texts: texts)  # type: ignore[misc]
        tally.tried["inbox"] += 19
        for path in inbox.iterdir():
            path.unlink()


def journals(draw: random.Random, count: int, folder: Path, tally: Tally) -> None:
    """A run's journal, read by the list of runs and by the window."""
    plan = Plan(steps=6, n=2, evaluate_every=2, checkpoint_every=3, end="stopped", noise_every=2)
    run = write_run(folder, plan)
    whole = run.journal_path.read_bytes()

    def read() -> None:
        summarise(run)
        store = RunStore(run)
        try:
            for _ in range(50):
                store.poll()
                if store.caught_up or store.problem:
                    break
        finally:
            store.close()

    for _ in range(count):
        content = mutated_bytes(draw, whole)
        for path in run.path.glob("run.sqlite*"):
            path.unlink()
        run.journal_path.write_bytes(content)
        tally.attempt("journal", read, lambda: "a journal")


def checkpoints(draw: random.Random, count: int, folder: Path, tally: Tally) -> None:
    """A checkpoint's files."""
    state = {"step": 3, "samples_seen": 12, "tokens_seen": 0, "engine": {}, "optimizer": [1, 2.0, "x"]}
    saved = checkpoint.Saved(
        model={"weight": torch.arange(12.0).view(3, 4)}, training={"m": torch.zeros(3)}, state=state
    )
    path, _ = checkpoint.write(folder / "checkpoints", 3, saved)
    files = {each: each.read_bytes() for each in path.iterdir()}
    for _ in range(count):
        hit = draw.choice(list(files))
        match draw.randrange(8):
            case 0:
                hit.unlink()
            case 1 if hit.suffix == ".json":
                hit.write_text(mutated(draw, files[hit].decode()), "utf-8", "surrogatepass")
            case _:
                hit.write_bytes(mutated_bytes(draw, files[hit]))

        def read() -> None:
            checkpoint.read_state(path)
            checkpoint.read(path)

        tally.attempt("checkpoint", read, lambda hit=hit: hit.name)  # type: ignore[misc]
        hit.write_bytes(files[hit])


IMPORTED: Final = (
    """\
base_model: a/b
adapter: lora
lora_r: 8
lora_target_modules: [q, v]
datasets:
  - path: d
    type: alpaca
micro_batch_size: 2
gradient_accumulation_steps: 4
learning_rate: 2e-4
num_epochs: 1
""",
    """\
model_name_or_path: a/b
stage: sft
do_train: true
finetuning_type: lora
dataset: alpaca_en
template: llama3
per_device_train_batch_size: 1
gradient_accumulation_steps: 8
num_train_epochs: 3.0
""",
    """\
{"output_dir": "o", "per_device_train_batch_size": 4, "learning_rate": 5e-5, "warmup_ratio": 0.1,
 "lr_scheduler_type": "cosine",
 "optim": "adamw_torch",
 "bf16": true}
""",
    """\
{"train_micro_batch_size_per_gpu": "auto",
 "gradient_accumulation_steps": "auto",
 "zero_optimization": {"stage": 2},
 "fp16": {"enabled": "auto"}}
""",
    """\
compute_environment: LOCAL_MACHINE
mixed_precision: bf16
num_processes: 2
gradient_accumulation_steps: 4
""",
)
"""One of each family, from which others are made."""


def imports(draw: random.Random, count: int, folder: Path, tally: Tally) -> None:
    """Other trainers' configuration files."""
    for _ in range(count):
        text = mutated(draw, draw.choice(IMPORTED))
        path = folder / draw.choice(("config.yaml", "config.yml", "config.json", "ds.json"))
        path.write_text(text, "utf-8", "surrogatepass")
        tally.attempt("import", lambda path=path: import_config(path), lambda text=text: text)  # type: ignore[misc]
        path.unlink()


WORDS: Final = (
    "run", "resume", "rollback", "set", "pause", "checkpoint", "stop", "answer", "queue", "runs", "show",
    "export", "import", "new", "task", "add", "list", "move", "remove", "--json", "--set", "--steps",
    "--help",
    "--now", "--from-step", "--format", "csv", "gradient_accumulation_steps", "learning_rate", "a-run",
    "--reason", "continue", "--best", "--python", "--", "-x",
)  # fmt: skip


def command_lines(draw: random.Random, count: int, folder: Path, tally: Tally) -> None:
    """What a person may type; no recipe is there, so that nothing starts."""
    write_run(folder / "runs", Plan(name="a-run", steps=3, end="stopped"))
    open_window.open_window = lambda *_: 0
    for _ in range(count):
        words = [
            draw.choice(WORDS) if draw.random() < 0.75 else draw.choice(NASTY).replace("\x00", "")
            for _ in range(draw.randint(1, 6))
        ]
        if words[0] not in WORDS[:14] or "resume" in words or "--follow" in words:
            words[0] = draw.choice(("set", "show", "runs", "stop", "pause", "rollback", "answer", "import"))
            words = [word for word in words if word != "resume"]
        words += ["--timeout", "0"] if words[0] in ("set", "stop", "pause", "rollback", "answer") else []

        def call(words: list[str] = words) -> None:
            with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
                try:
                    code = cli.main(words)
                except SystemExit as exit_of:
                    code = exit_of.code if isinstance(exit_of.code, int) else 2
            if code not in (0, 1, 2, 130) or "Traceback" in said.getvalue():
                raise AssertionError(f"exit code {code}: {said.getvalue()}")

        tally.attempt("command_line", call, lambda words=words: words)  # type: ignore[misc]


VARIABLES: Final = (
    "GRADACC_HOME", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "WORLD_SIZE", "RANK", "LOCAL_RANK",
    "LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT",
    "SLURM_NTASKS", "SLURM_PROCID", "SLURM_JOB_ID", "OMP_NUM_THREADS", "PYTHONPATH", "PYTHONHOME",
    "VIRTUAL_ENV", "LANG", "LC_ALL", "TZ", "COLUMNS", "NO_COLOR", "TERM", "HOME", "USER", "LOGNAME",
    "XDG_CONFIG_HOME", "TMPDIR", "HF_HUB_OFFLINE", "GRADACC_PYTHON",
)  # fmt: skip


def environments(draw: random.Random, count: int, folder: Path, tally: Tally) -> None:
    """Variables that we read, with anything in them."""
    before = dict(os.environ)
    write_run(folder / "runs", Plan(name="a-run", steps=2, end="stopped"))
    for number in range(count):
        given = {}
        for name in draw.sample(VARIABLES, draw.randint(1, 4)):
            value = draw.choice(NASTY).replace("\x00", "")
            if name == "GRADACC_HOME":
                value = str(folder / "odd" / value.strip("/.")[:80]) if draw.random() < 0.7 else value
                value = "" if value.startswith(("/etc", "..")) or value == "/" else value
            given[name] = value
        os.environ.update(given)

        def call(number: int = number) -> None:
            with contextlib.suppress(GradaccError):
                home()
            with contextlib.suppress(GradaccError):
                torchrun.place_of(os.environ)
            cleaned_environment()
            if number % 20 == 0:
                describe_devices()
                with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
                    cli.main(["runs"])

        tally.attempt("environment", call, lambda given=given: given)  # type: ignore[misc]
        os.environ.clear()
        os.environ.update(before)


DOORS: Final[dict[str, Callable[[random.Random, int, Path, Tally], None]]] = {
    "recipe": recipes,
    "inbox": commands,
    "journal": journals,
    "checkpoint": checkpoints,
    "import": imports,
    "command_line": command_lines,
    "environment": environments,
}


@contextlib.contextmanager
def place(door: str) -> Iterator[Path]:
    """A folder of its own, which is GRADACC_HOME too."""
    folder = Path(tempfile.mkdtemp(prefix=f"fuzz-{door}-"))
    before = os.environ.get("GRADACC_HOME")
    os.environ["GRADACC_HOME"] = str(folder)
    here = Path.cwd()
    os.chdir(folder)  # what is written beside a recipe, or by `new task`, stays there
    try:
        yield folder
    finally:
        os.chdir(here)
        os.environ.pop("GRADACC_HOME")
        if before is not None:
            os.environ["GRADACC_HOME"] = before
        shutil.rmtree(folder, ignore_errors=True)


def fuzz(few: int = 1, seed: int = 0, doors: tuple[str, ...] = tuple(DOORS)) -> dict[str, Any]:
    """Try each door; gives the counts."""
    signal.signal(signal.SIGALRM, _alarm)
    tally = Tally()
    for door in doors:
        with place(door) as folder:
            DOORS[door](random.Random(f"{seed} {door}"), COUNTS[door] // few, folder, tally)  # noqa: S311 - no secret
        print(f"{door}: {tally.tried.get(door, 0)} tried", file=sys.stderr, flush=True)
    return {"fuzz": tally.tried, "tracebacks": tally.tracebacks, "hangs": tally.hangs}


def main() -> None:
    """Try, and print one JSON object."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--few", type=int, default=1, metavar="K", help="one input in K")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("doors", nargs="*", metavar="DOOR", help=f"of {', '.join(DOORS)}")
    asked = parser.parse_args()
    print(json.dumps(fuzz(asked.few, asked.seed, tuple(asked.doors) or tuple(DOORS))))


if __name__ == "__main__":
    main()
