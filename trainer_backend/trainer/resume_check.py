"""What differs between a checkpoint and the attempt that goes on from it: applied, or refused, and said.

A checkpoint holds the whole configuration, the data's length and fingerprint (16 fixed samples, sizes and
times of files), torch's version and its number of threads.
"""

from __future__ import annotations

import dataclasses
import glob
import hashlib
import itertools
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import torch

from trainer_backend.config import RunConfig
from trainer_backend.data.randomness import borrowed, mixed, seed_all
from trainer_backend.data.stream import is_iterable
from trainer_backend.errors import GradaccError
from trainer_backend.protocol import Scalar, Warned

SAMPLES: Final = 16
"""How many samples the fingerprint reads, evenly over the data set."""
MOST_FILES: Final = 100_000
"""Files whose sizes and times are read: some seconds at the most."""
OF_DATA: Final = ("data", "task")
NO_DATA: Final = frozenset({"model", "tokenizer", "adapter", "entry", "kind"})
"""Keys of these tables whose files are no data."""
_SEED: Final = 0x5A3B
REFUSED: Final[Mapping[str, str]] = {
    "run.seed": "the order of the samples follows from it, so some would come twice and some never",
    "data.shuffle": "the order of the samples follows from it, so some would come twice and some never",
    "optimizer.name": "its state in the checkpoint is another optimizer's",
    "task.kind": "the checkpoint holds another kind's model",
}
"""Keys that cannot change in a run that goes on, and why."""
STEERED: Final = frozenset(
    {
        "accumulation.gradient_accumulation_steps",
        "accumulation.effective_batch_size",
        "accumulation.micro_batch_size",
        "optimizer.learning_rate",
        "optimizer.weight_decay",
        "optimizer.max_grad_norm",
        "optimizer.ema_decay",
    }
)
"""Keys whose change is recorded as a setting's, with its step."""
OF_GROUPS: Final = ("eps", "momentum", "nesterov")
"""What an optimizer keeps in its groups, and takes over from the checkpoint with them."""
LENGTHS: Final = ("run.epochs", "run.max_samples", "run.max_optimizer_steps")


class DataFingerprint(msgspec.Struct, frozen=True):
    """What a data set was when a checkpoint was saved.

    `length` and `samples_sha256` are None where it can only be read in order, the files' hashes where the
    recipe names none, and in checkpoints of older versions.
    """

    length: int | None
    samples_sha256: str | None
    sizes_sha256: str | None = None
    """Of the names and sizes of the files that the recipe names, those in its folders included."""
    times_sha256: str | None = None
    """Of their times of change."""


def fingerprint(dataset: Any, recipe: Mapping[str, Any], base: Path) -> DataFingerprint:  # noqa: ANN401 - any data set
    """The length, a hash of 16 samples whose randomness is fixed, and the files' sizes and times.

    `recipe`: its tables as plain data; its paths are looked for below `base`.
    """
    sizes, times = _files(recipe, base)
    length, samples = _samples(dataset)
    return DataFingerprint(length, samples, sizes, times)


def _files(recipe: Mapping[str, Any], base: Path) -> tuple[str | None, str | None]:
    """Hashes of the sizes and of the times of all files named in the tables of data and task."""
    named = {text for table in OF_DATA for text in _texts(recipe.get(table))}
    sizes, times = hashlib.sha256(), hashlib.sha256()
    found = 0
    for text in sorted(named):
        for path in itertools.islice(_files_at(text, base), MOST_FILES - found):
            with suppress(OSError):
                about = path.stat()
                found += 1
                sizes.update(f"{path} {about.st_size}\n".encode(errors="replace"))
                times.update(f"{path} {about.st_mtime_ns}\n".encode(errors="replace"))
    return (sizes.hexdigest(), times.hexdigest()) if found else (None, None)


def _texts(value: Any) -> Iterator[str]:  # noqa: ANN401 - plain data
    """All texts in a value that may be paths; a model's folder holds no data."""
    match value:
        case str():
            if value and len(value) < 4096 and "\0" not in value:
                yield value
        case Mapping():
            for key, entry in value.items():
                if key not in NO_DATA:
                    yield from _texts(entry)
        case list() | tuple():
            for entry in value:
                yield from _texts(entry)
        case _:
            return


def _files_at(text: str, base: Path) -> Iterator[Path]:
    """The file, the files of the folder, or those of the pattern, in order; none for any other text."""
    with suppress(OSError, ValueError, NotImplementedError):
        path = base / Path(text).expanduser()
        if path.is_file():
            yield path
        elif path.is_dir():
            for folder, folders, names in os.walk(path):
                folders.sort()
                yield from (Path(folder) / name for name in sorted(names))
        elif set("*?[") & set(text) and "/" in text:
            yield from (Path(match) for match in sorted(glob.glob(str(path), recursive=True)))  # noqa: PTH207


def _samples(dataset: Any) -> tuple[int | None, str | None]:  # noqa: ANN401 - any data set
    """The length, and a hash of 16 samples."""
    if is_iterable(dataset):
        return len(dataset) if hasattr(dataset, "__len__") else None, None
    length = len(dataset)
    digest = hashlib.sha256()
    try:
        with borrowed():
            for number in range(min(SAMPLES, length)):
                index = number * length // min(SAMPLES, length)
                seed_all(mixed(_SEED, index))
                for part in _parts(dataset[index]):
                    digest.update(part)
    except Exception:  # noqa: BLE001 - the user's code; its error is told where the sample's turn comes
        return length, None
    return length, digest.hexdigest()


def _parts(sample: Any) -> Iterator[bytes]:  # noqa: ANN401, C901 - any sample; a case a type reads best
    """A sample's content as bytes; of what has no content that can be read, its type."""
    match sample:
        case torch.Tensor():
            yield str((sample.dtype, tuple(sample.shape))).encode()
            if not sample.is_sparse:
                yield sample.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        case Mapping():
            for key in sorted(sample, key=str):
                yield str(key).encode()
                yield from _parts(sample[key])
        case list() | tuple():
            for entry in sample:
                yield from _parts(entry)
        case bytes():
            yield sample
        case str() | int() | float() | bool() | None:
            yield repr(sample).encode()
        case _ if dataclasses.is_dataclass(sample) and not isinstance(sample, type):
            for field in dataclasses.fields(sample):
                yield from _parts(getattr(sample, field.name))
        case _ if hasattr(sample, "tobytes"):  # NumPy's arrays, pictures
            yield sample.tobytes()
        case _:
            yield type(sample).__name__.encode()


def environment() -> dict[str, Scalar]:
    """What the last bits of a run depend on besides its recipe."""
    return {"torch": torch.__version__, "threads": torch.get_num_threads()}


def flat(tables: Mapping[str, Any]) -> dict[str, Any]:
    """{"run": {"seed": 1}} as {"run.seed": 1}."""
    return {
        f"{name}.{key}": value
        for name, table in tables.items()
        if isinstance(table, Mapping)
        for key, value in table.items()
    }


def check_recipe(
    config: RunConfig, before: Mapping[str, Any], optimizer: torch.optim.Optimizer
) -> list[Warned]:
    """What the recipe says otherwise than when the checkpoint was saved, each as it was dealt with.

    Brings the optimizer's constants up to date, which came back with its state. Raises GradaccError for
    what cannot change in a run that goes on.
    """
    asked = msgspec.json.decode(msgspec.json.encode(config))  # lists for tuples, as a checkpoint has it
    now, old = flat(asked), flat(before)
    said: list[Warned] = []
    for key in sorted(now.keys() | old.keys()):
        if key not in old or key not in now or now[key] == old[key]:
            continue  # a key of another version: its default then is not known
        if key in REFUSED:
            message = (
                f"{key} was {_shown(old[key])} when this run's checkpoint was saved and is {_shown(now[key])}"
                f" now: {REFUSED[key]}. Set it back, or start a new run."
            )
            raise GradaccError(message)
        if key in STEERED or key.startswith(("published.", "targets.")) or key == "run.name":
            continue
        values: dict[str, Scalar] = {"key": key, "before": _shown(old[key]), "after": _shown(now[key])}
        said.append(Warned(code="length-changed" if key in LENGTHS else "recipe-changed", values=values))
    _update_groups(config, old, optimizer)
    return said


def _update_groups(config: RunConfig, old: Mapping[str, Any], optimizer: torch.optim.Optimizer) -> None:
    """A task's own optimizer is left as its state says; the recipe says nothing of it."""
    asked = msgspec.to_builtins(config.optimizer)
    for group in optimizer.param_groups:
        for key in OF_GROUPS:
            if key in group and asked.get(key) != old.get(f"optimizer.{key}", asked.get(key)):
                group[key] = asked[key]
        betas = old.get("optimizer.betas")
        if betas is not None and "betas" in group and betas[0] != asked["betas"][0]:
            group["betas"] = (asked["betas"][0], group["betas"][1])


def check_surroundings(state: Mapping[str, Any], data: DataFingerprint) -> list[Warned]:
    """What changed around the recipe: the data, torch, threads. Raises GradaccError for another length."""
    said: list[Warned] = []
    saved = state.get("data")
    before = None if saved is None else msgspec.convert(saved, DataFingerprint)
    if before is None or (data.samples_sha256 is None and None in (before.sizes_sha256, data.sizes_sha256)):
        said.append(Warned(code="data-not-compared"))
    else:
        if before.length is not None and before.length != data.length:
            message = (
                f"The training data has {data.length:,} samples, and had {before.length:,} when this run's"
                " checkpoint was saved: the order of the samples follows from their number, so some would"
                " come twice and some never. Bring the data back, or start a new run from its weights."
            )
            raise GradaccError(message)
        if before.samples_sha256 is not None and data.samples_sha256 not in (None, before.samples_sha256):
            said.append(Warned(code="data-changed"))
        elif None not in (before.sizes_sha256, data.sizes_sha256):
            if before.sizes_sha256 != data.sizes_sha256:
                said.append(Warned(code="data-files-changed"))
            elif before.times_sha256 != data.times_sha256:
                said.append(Warned(code="data-files-touched"))
    old, now = state.get("environment") or {}, environment()
    said += [
        Warned(code=f"{name}-changed", values={"before": old[name], "after": now[name]})
        for name in now
        if name in old and old[name] != now[name]
    ]
    return said


def _shown(value: Any) -> str:  # noqa: ANN401 - plain data
    """A value as a sentence shows it."""
    if value is None:
        return "not set"
    text = f'"{value}"' if isinstance(value, str) else str(value)
    return text if len(text) <= 80 else f"{text[:79]}…"
