"""Weights as files for other programs, and the commands that make a GGUF file of them."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

from trainer_backend.errors import UsageError
from trainer_backend.trying.opened_run import OpenedRun
from trainer_backend.trying.try_messages import ExportKind, HandedOver


def hand_over(opened: OpenedRun, what: ExportKind, folder: Path) -> HandedOver:
    """Write into a new or empty folder; half of it is never left under that name. Raises UsageError."""
    folder = folder.expanduser().absolute()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        message = f"{folder} is there already and not empty. Give another folder."
        raise UsageError(message)
    beside = folder.with_name(f".{folder.name}.part")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        beside.mkdir(parents=True)
        opened.task.hand_over(opened.model, what, beside)
        if folder.exists():
            folder.rmdir()
        beside.rename(folder)
        size_bytes = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    except OSError as error:
        message = (
            f"{folder} cannot be written: {error.strerror or error}. Choose another place, or free some disk."
        )
        raise UsageError(message) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
    commands = gguf_commands(opened, what, folder) if opened.recipe.config.kind == "causal-lm" else ()
    return HandedOver(what=what, folder=str(folder), size_bytes=size_bytes, commands=commands)


def gguf_commands(opened: OpenedRun, what: ExportKind, folder: Path) -> tuple[str, ...]:
    """For a shell of this system: llama.cpp's own converters, which no package ships."""
    target = folder.with_name(f"{folder.name}.gguf")
    if what == "adapter":
        base = str(opened.task.task.model)
        local = opened.task.path(base)
        given = ["--base", str(local)] if local.is_dir() else ["--base-model-id", base]
        convert = [
            "python",
            "llama.cpp/convert_lora_to_gguf.py",
            str(folder),
            *given,
            "--outfile",
            str(target),
        ]
    else:
        convert = [
            "python", "llama.cpp/convert_hf_to_gguf.py", str(folder),
            "--outfile", str(target), "--outtype", "auto",
        ]  # fmt: skip
    return (
        "git clone --depth 1 https://github.com/ggml-org/llama.cpp",
        "pip install -r llama.cpp/requirements.txt",
        subprocess.list2cmdline(convert) if os.name == "nt" else shlex.join(convert),
    )
