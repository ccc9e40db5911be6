"""Checks that need the model: it is built as a run builds it, and one micro-batch goes through it."""

from __future__ import annotations

import contextlib
import math
import random
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeAlias

import psutil
import torch

from trainer_backend.config import RunConfig
from trainer_backend.engine import inspect_loss, inspect_model
from trainer_backend.engine.batches import to_device
from trainer_backend.engine.memory import is_out_of_memory
from trainer_backend.engine.precision import Precision, autocast
from trainer_backend.engine.terms import read_terms
from trainer_backend.kinds.task_warnings import warning_sentence
from trainer_backend.optimizer_table import OPTIMIZERS
from trainer_backend.preflight.data_checks import Findings, found
from trainer_backend.preflight.findings import AnyCheckMessage, CheckProgress, Finding
from trainer_backend.preflight.first_window import DataRead
from trainer_backend.private_files import home
from trainer_backend.protocol import Scalar
from trainer_backend.run_directory import all_runs
from trainer_backend.tasks.making import method, model_of
from trainer_backend.trainer.assembly import optimizer_for
from trainer_backend.trainer.devices import choose_device, choose_precision
from trainer_backend.trainer.failures import sentence_of

FAR_FROM_CHANCE: Final = 2.0
"""A new output layer's loss may be so many times that of guessing, or so small a part of it."""
MOST_TRIAL_S: Final = 10.0
"""Further micro-batches are tried for a missing gradient until then."""
ROOM_RATIO: Final = 0.8
"""Of the free memory, for the weights alone."""
Tell: TypeAlias = Callable[[AnyCheckMessage], None]
HALF: Final = (torch.float16, torch.bfloat16)
LOSS_CODES: Final = ("loss-half", "loss-mean", "loss-weight-not-additive", "loss-not-additive")


def check_model(data: DataRead, tell: Tell) -> Findings:
    """Everything that needs a model; ends early where there is none."""
    began = time.perf_counter()
    waiting = _why_wait(data)
    if waiting is not None:
        yield waiting
        return
    config = data.config
    device = side_device(config)
    precision = choose_precision(config.run.precision, device)
    heard = len(data.heard)
    random.seed(config.run.seed)
    torch.manual_seed(config.run.seed)
    try:
        model = model_of(data.task).to(device).train()
        optimizer = optimizer_for(config, data.task, model)
    except Exception as error:  # noqa: BLE001 - the user's code and libraries raise anything
        yield from _refused(error)
        return
    trained = [(name, weight) for name, weight in model.named_parameters() if weight.requires_grad]
    yield Finding(
        code="model-built",
        state="ok",
        values={
            "trained": _count(sum(weight.numel() for _, weight in trained)),
            "all": _count(sum(weight.numel() for weight in model.parameters())),
            "device": {"cpu": "the CPU", "cuda": "the GPU"}.get(device.type, device.type),
        },
        duration_s=time.perf_counter() - began,
    )
    for code, values in data.heard[heard:]:
        if code == "weights-missing":
            yield Finding(code=code, state="doubtful", values=values)
    yield from _optimizer_holds(trained, optimizer)
    yield from check_disk(config, model, trained)
    tell(CheckProgress(code="trying-model"))
    try:
        yield from _trial(data, model, trained, device, precision)
    except Exception as error:  # noqa: BLE001 - likewise
        if is_out_of_memory(error):
            yield found("not-tried", "waits", why=f"one micro-batch does not fit into {device.type} memory")
        else:
            yield from _refused(error)


def _refused(error: Exception) -> Findings:
    yield found("model-refused", "stop", sentence=sentence_of(error))


def side_device(config: RunConfig) -> torch.device:
    """The run's device, or the CPU where a live run may be using it. Raises UsageError."""
    device = choose_device(config.run.device)
    if device.type == "cpu":
        return device
    for run in all_runs():
        if run.is_alive():
            other = run.config()
            if other is None or other.run.device != "cpu":
                return torch.device("cpu")
    return device


# ---------------------------------------------------------------------------------- before it


def _why_wait(data: DataRead) -> Finding | None:
    """A model whose weights are not here, or that this machine cannot hold."""
    if data.config.kind != "causal-lm":
        return None
    files = weight_files(data.task)
    if isinstance(files, str):
        return found("model-waits", "waits", why=files)
    size_bytes = sum(file.stat().st_size for file in files)
    free_bytes = int(psutil.virtual_memory().available)
    if size_bytes > ROOM_RATIO * free_bytes:
        return found("model-too-large", "waits", size=_gigabytes(size_bytes), free=_gigabytes(free_bytes))
    return None


def weight_files(task: Any) -> list[Path] | str:  # noqa: ANN401 - a CausalLM
    """The files that hold a model's weights, or why there are none; nothing is fetched for it."""
    from trainer_backend.tasks.causal_lm.loading import model_source  # noqa: PLC0415 - transformers

    source = model_source(task.task, task.folder)
    folder = Path(source)
    if not folder.is_dir():
        cached = _cached(source)
        if cached is None:
            return f"the weights of {source} are not on this machine yet, and a run would fetch them"
        folder = cached
    files = [
        path
        for suffix in ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.ckpt", "*.msgpack", "*.h5")
        for path in folder.glob(suffix)
    ]
    return files or f"the folder {source} holds no weights"


def _cached(name: str) -> Path | None:
    """Where the hub's cache keeps a model's weights."""
    import huggingface_hub  # noqa: PLC0415 - comes with transformers

    for file in (
        "model.safetensors",
        "model.safetensors.index.json",
        "pytorch_model.bin",
        "pytorch_model.bin.index.json",
    ):
        with contextlib.suppress(ValueError):
            found_at = huggingface_hub.try_to_load_from_cache(name, file)
            if isinstance(found_at, str):
                return Path(found_at).parent
    return None


# ----------------------------------------------------------------------------------- without data


def _optimizer_holds(
    trained: list[tuple[str, torch.nn.Parameter]], optimizer: torch.optim.Optimizer
) -> Findings:
    held = {id(weight) for group in optimizer.param_groups for weight in group["params"]}
    missed = [name for name, weight in trained if id(weight) not in held]
    if missed:
        yield found("optimizer-misses", "doubtful", count=len(missed), first=missed[0])
    else:
        yield found("optimizer-holds", count=len(trained))


def check_disk(
    config: RunConfig, model: torch.nn.Module, trained: list[tuple[str, torch.nn.Parameter]]
) -> Findings:
    """Room for two checkpoints: the new one is whole before the old one goes."""
    weights = [value for value in model.state_dict().values() if isinstance(value, torch.Tensor)]
    model_bytes = sum(value.numel() * value.element_size() for value in weights)
    count = sum(weight.numel() for _, weight in trained)
    halves = sum(weight.numel() for _, weight in trained if weight.dtype in HALF)
    row = OPTIMIZERS.get(config.optimizer.name)
    state_bytes = count * (row.state_bytes if row is not None else 8) + 4 * halves  # fp32 masters
    if config.optimizer.ema_decay is not None:
        state_bytes += 4 * count
    wanted = 2 * (model_bytes + state_bytes)
    folder = home()
    place = next(parent for parent in (folder, *folder.parents) if parent.exists())
    free = shutil.disk_usage(place).free
    values: dict[str, Scalar] = {"wanted": _gigabytes(wanted), "free": _gigabytes(free)}
    if wanted > free:
        yield Finding(code="disk-short", state="stop", values=values | {"folder": str(folder)})
    else:
        yield Finding(code="disk-enough", state="ok", values=values)


# ------------------------------------------------------------------------------ one micro-batch


def _trial(
    data: DataRead,
    model: torch.nn.Module,
    trained: list[tuple[str, torch.nn.Parameter]],
    device: torch.device,
    precision: Precision,
) -> Findings:
    if not data.batches:
        return
    yield from _remarks(data, model, device, precision)
    began = time.perf_counter()
    losses: dict[str, float] = {}
    missing = trained
    for batch in data.batches:
        terms = _backward(data.task, model, batch.batch, device, precision)
        losses = losses or terms
        missing = [(name, weight) for name, weight in trained if weight.grad is None]
        if not missing or time.perf_counter() - began > MOST_TRIAL_S:
            break
    cost = time.perf_counter() - began
    yield from _loss_at_start(data, losses, cost)
    if missing:
        yield Finding(
            code="gradient-missing",
            state="stop",
            values={"count": len(missing), "all": len(trained), "first": missing[0][0]},
            may_be_accepted=True,
        )
    else:
        yield found("gradient-everywhere", count=len(trained))


def _backward(
    task: Any,  # noqa: ANN401 - any task
    model: torch.nn.Module,
    batch: Any,  # noqa: ANN401 - any batch
    device: torch.device,
    precision: Precision,
) -> dict[str, float]:
    """Each term's loss over its own weight; gradients are left in the model."""
    with autocast(precision, device) or contextlib.nullcontext():
        terms = tuple(read_terms(task.loss(model, to_device(batch, device))))
    total = sum(term.total / max(float(term.weight), 1e-30) for term in terms if float(term.weight))
    if isinstance(total, torch.Tensor):
        total.backward()  # type: ignore[no-untyped-call]
    return {
        term.name: float(term.total.detach()) / float(term.weight) for term in terms if float(term.weight)
    }


def _loss_at_start(data: DataRead, losses: dict[str, float], cost: float) -> Findings:
    if not losses:
        return
    name, loss = next(iter(losses.items()))
    if not all(math.isfinite(value) for value in losses.values()):
        odd = next(value for value in losses.values() if not math.isfinite(value))
        yield Finding(code="loss-not-finite", state="stop", values={"loss": str(odd)}, duration_s=cost)
        return
    classes, is_new = _classes(data, name)
    values: dict[str, Scalar] = {"loss": loss}
    if classes:
        values |= {"classes": classes, "chance": math.log(classes)}
    if not classes:
        code, state = "loss-finite", "ok"
    elif is_new:
        far = not 1 / FAR_FROM_CHANCE < loss / math.log(classes) < FAR_FROM_CHANCE
        code, state = ("loss-far", "doubtful") if far else ("loss-as-chance", "ok")
    else:
        as_bad = loss > 0.97 * math.log(classes)
        code, state = ("loss-above-chance", "doubtful") if as_bad else ("loss-finite", "ok")
    yield Finding(code=code, state=state, values=values, duration_s=cost)  # type: ignore[arg-type]


def _classes(data: DataRead, term: str) -> tuple[int, bool]:
    """Among how many the main term chooses (0: not known), and whether its output layer is new."""
    task: Any = data.task
    match data.config.kind:
        case "language-model":
            return 256, True
        case "image-classification":
            return len(task.classes), True
        case "segmentation" if term == "cross-entropy" and task.task.cross_entropy == 1.0:
            return task.task.classes, True
        case "causal-lm":
            return task.embedding_rows() or len(task.tokenizer), False
        case _:
            return 0, False


def _remarks(data: DataRead, model: torch.nn.Module, device: torch.device, precision: Precision) -> Findings:
    """What accumulation will not make exact: BatchNorm, losses that do not add up."""
    config = data.config
    said = inspect_model(
        model,
        micro_batch_size=config.accumulation.micro_batch_size,
        accumulation_steps=config.accumulation_steps,
        gradient_dtype=config.accumulation.gradient_dtype,
    )
    norms = [warned for warned in said if warned.code.startswith("batch-norm")]
    for warned in norms:
        yield found("batch-norm", "doubtful", sentence=warning_sentence(warned.code, warned.values))
    if not norms:
        yield found("batch-norm-none")
    others = [warned for warned in said if warned not in norms]
    split = method(data.task, "split")
    tried = inspect_loss(
        model, data.task.loss, data.batches[0].batch, split_batch=split, device=device, precision=precision
    )
    for warned in [*others, *(entry for entry in tried if entry.code not in LOSS_CODES)]:
        yield found("model-remark", "doubtful", sentence=warning_sentence(warned.code, warned.values))
    sums = [warned for warned in tried if warned.code in LOSS_CODES]
    for warned in sums:
        sentence = warning_sentence(warned.code, warned.values)
        yield found("loss-does-not-add-up", "doubtful", sentence=sentence)
    if not sums:
        yield found("loss-adds-up")


def _count(number: int) -> str:
    for limit, unit in ((10**9, "B"), (10**6, "M"), (10**3, "k")):
        if number >= limit:
            return f"{number / limit:.3g} {unit}"
    return str(number)


def _gigabytes(size_bytes: float) -> str:
    return f"{size_bytes / 1e9:.3g}" if size_bytes >= 1e6 else "0.001"
