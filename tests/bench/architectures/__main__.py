"""`python -m tests.bench.architectures [NAME …] [--only language|pictures] [--every K]`: see the package."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Final

from tests.bench.architectures._trials import Outcome, prepare, try_language_model, try_picture_model

PATIENCE_S: Final = 300.0
"""One that takes longer is wrong: it hangs."""
EVERY: Final = 7
"""Of timm's models."""


def names(only: str, every: int) -> list[tuple[str, str]]:
    """(library, architecture) of all that are tried."""
    import timm
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    language = [("language", name) for name in sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)]
    pictures = [("pictures", name) for name in timm.list_models()[::EVERY]]
    return [one for one in [*language, *pictures] if only in ("", one[0])][::every]


def trial(library: str, name: str, shared: Path, answer: Connection) -> None:
    """In a process of its own: try one, and tell."""
    import warnings

    import torch

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    log = os.open(shared / "log.txt", os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    run = try_language_model if library == "language" else try_picture_model
    with tempfile.TemporaryDirectory(prefix="architecture-") as folder:
        os.environ["GRADACC_HOME"] = folder
        try:
            outcome = run(name, Path(folder), shared)
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            import traceback

            traceback.print_exc()
            outcome = Outcome(name, "wrong", f"crashed: {type(error).__name__}: {str(error)[:300]}")
        answer.send(tuple(outcome))


def outcomes(asked: list[tuple[str, str]], shared: Path) -> Iterator[Outcome]:
    """One after the other, each forked from this process, which has imported the libraries."""
    context = multiprocessing.get_context("fork")
    for library, name in asked:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=trial, args=(library, name, shared, theirs))
        process.start()
        theirs.close()
        try:
            told: Any = ours.recv() if ours.poll(PATIENCE_S) else (name, "wrong", f"took {PATIENCE_S:.0f} s")
        except EOFError:
            process.join()
            told = (name, "wrong", f"died with {process.exitcode}")
        process.terminate() if process.is_alive() and "took" in told[2] else None
        process.join(PATIENCE_S)
        ours.close()
        yield Outcome(*told)


def main() -> int:
    """Try them all; exit code 1 where any is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.architectures")
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--only", choices=("language", "pictures"), default="")
    parser.add_argument("--every", type=int, default=1, metavar="K", help="only every K-th")
    options = parser.parse_args()
    asked = names(options.only, options.every)
    asked = [one for one in asked if not options.names or one[1] in options.names]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="architectures-") as folder:
        prepare(Path(folder))
        found = []
        for outcome in outcomes(asked, Path(folder)):
            found.append(outcome)
            print(f"{outcome.name:40} {outcome.fate:16} {outcome.reason}", file=sys.stderr, flush=True)
    by_fate = {
        fate: [one for one in found if one.fate == fate]
        for fate in ("equal", "per_micro_batch", "refused", "not_made", "wrong")
    }
    summary: dict[str, Any] = {"architectures": len(found), "took_s": round(time.monotonic() - began)}
    summary |= {fate: len(these) for fate, these in by_fate.items() if fate != "wrong"}
    summary["wrong"] = {one.name: one.reason for one in by_fate["wrong"]}
    print(json.dumps(summary))
    return int(bool(by_fate["wrong"]))


if __name__ == "__main__":
    raise SystemExit(main())
