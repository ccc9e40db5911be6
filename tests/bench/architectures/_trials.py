"""One architecture, tried: certified, trained, its first loss held against the plain model's."""

from __future__ import annotations

import contextlib
import io
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from tests.support.language_models import write_json_lines, write_tokenizer
from tests.support.trainers import events, make_run, run_here
from trainer_backend.protocol import OptimizerStepMeasured, RunFailed, RunFinished

Fate: TypeAlias = Literal["equal", "per_micro_batch", "refused", "not_made", "wrong"]
TEXTS: Final = [
    " ".join(["a river runs to the sea"] * (1 + place % 4))[: 20 + 7 * place] for place in range(16)
]
CLOSE: Final = 2e-4
"""Relative difference of two fp32 losses of one model over the same tokens, added up in another order."""


class Outcome(NamedTuple):
    """What became of one architecture."""

    name: str
    fate: Fate
    reason: str = ""


def try_language_model(kind: str, folder: Path, shared: Path) -> Outcome:
    """Make it, then everything else. `shared` has the tokenizer and the texts."""
    import transformers

    from tests.bench.architectures._tiny_models import tiny_model

    model_folder = folder / "model"
    shutil.copytree(shared / "tokenizer", model_folder)
    try:
        tokens = len(transformers.AutoTokenizer.from_pretrained(model_folder))
        tiny_model(kind, tokens).save_pretrained(model_folder)
        plain_loss(model_folder)  # sizes that do not go together show here
    except Exception as error:  # noqa: BLE001 - the library's own, of whatever kind
        return Outcome(kind, "not_made", f"{type(error).__name__}: {str(error).strip()[:160]}")
    task = {"kind": "causal-lm", "model": str(model_folder), "method": "full", "max_length": 64,
            "weights_dtype": "fp32", "offline": True}  # fmt: skip
    recipe = _recipe(task, {"path": str(shared / "texts.jsonl"), "validation_fraction": 0.0})
    return _tried(kind, recipe, folder, lambda: plain_loss(model_folder))


def try_picture_model(name: str, folder: Path, shared: Path) -> Outcome:
    """An image classifier of timm, at the size that it wants at least."""
    import timm

    side = timm.get_pretrained_cfg(name)
    wanted = max((side.min_input_size or side.input_size)[1:]) if side else 224
    side_px = wanted if side and side.fixed_input_size else min(wanted, 64) if wanted > 0 else 64
    task = {"kind": "image-classification", "model": name, "pretrained": False, "image_size": side_px}
    data = {"path": str(shared / "pictures"), "validation_fraction": 0.0}
    return _tried(name, _recipe(task, data), folder, lambda: None)


def _recipe(task: dict[str, Any], data: dict[str, Any]) -> dict[str, Any]:
    return {
        "run": {"device": "cpu", "precision": "fp32", "max_optimizer_steps": 2},
        "task": task,
        "data": data | {"shuffle": False},
        "accumulation": {"micro_batch_size": 2, "gradient_accumulation_steps": 4},
        "optimizer": {"name": "sgd", "learning_rate": 1e-3},
    }


def _tried(name: str, recipe: dict[str, Any], folder: Path, expected: Callable[[], float | None]) -> Outcome:
    run = make_run(folder, recipe)
    verdict, reason = certified(folder / "recipe.toml")
    if verdict == "not-equal":
        return Outcome(name, "wrong", f"not equal: {reason}")
    if verdict == "failed" and reason.partition(":")[0].endswith("Error"):
        return Outcome(name, "wrong", f"verify: {reason}")
    code = run_here(run)
    failures = events(run, RunFailed)
    if verdict == "failed":
        return Outcome(name, "refused" if failures else "wrong", reason)
    if failures or code or not events(run, RunFinished):
        return Outcome(name, "wrong", f"trains not: {failures or code}")
    steps = events(run, OptimizerStepMeasured)
    loss = steps[0].loss if len(steps) == 2 else None
    if loss is None or not math.isfinite(loss):
        return Outcome(name, "wrong", f"{len(steps)} windows, loss {loss}")
    right = expected()
    if right is not None and abs(loss - right) > CLOSE * abs(right):
        return Outcome(name, "wrong", f"first loss {loss:.6f}, of the plain model {right:.6f}; {verdict}")
    return Outcome(name, "equal" if verdict == "equal" else "per_micro_batch", reason)


def certified(recipe: Path) -> tuple[str, str]:
    """The verdict, or "failed"; and culprits, or the sentence."""
    from trainer_backend.verify.command import main
    from trainer_backend.verify.report import VerifyFailed, VerifyReport, decode

    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        main([str(recipe), "--json", "--samples", "8", "--steps", "2,4"])
    last = decode(out.getvalue().splitlines()[-1])
    if isinstance(last, VerifyFailed):
        return "failed", last.message
    assert isinstance(last, VerifyReport)
    return last.verdict, ", ".join(f"{one.code} {' '.join(one.where[:2])}".strip() for one in last.culprits)


def plain_loss(model_folder: Path) -> float:
    """Mean cross-entropy a token of the first window's eight texts, each by itself."""
    import torch
    import transformers

    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder)
    options: dict[str, Any] = {"dtype": torch.float32}
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(model_folder, **options)
    except ValueError:
        model = transformers.AutoModelForCausalLM.from_pretrained(
            model_folder, attn_implementation="eager", **options
        )
    ratio = float(getattr(model.config, "router_aux_loss_coef", 0.0) or 0.0)
    total, count = 0.0, 0
    with torch.no_grad():
        for begin in range(0, 8, 2):  # a router's auxiliary loss belongs to a micro-batch, of two here
            pair = [[*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
                    for text in TEXTS[begin : begin + 2]]  # fmt: skip
            tokens = sum(len(ids) - 1 for ids in pair)
            total += sum(_summed(model, ids) for ids in pair)
            total += ratio * tokens * (_auxiliary(model, pair) if ratio else 0.0)
            count += tokens
    return total / count


def _summed(model: Any, ids: list[int]) -> float:
    """Cross-entropy of a text's tokens behind the first."""
    import torch

    logits = model.train()(input_ids=torch.tensor([ids]), use_cache=False).logits[0].double()
    return float(torch.nn.functional.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="sum"))


def _auxiliary(model: Any, pair: list[list[int]]) -> float:
    """The auxiliary loss of a padded micro-batch, without its padding; 0 where the model has none."""
    import torch

    if not hasattr(model.config, "output_router_logits"):
        return 0.0
    model.config.output_router_logits = True
    longest = max(map(len, pair))
    ids = torch.tensor([[*ids, *[0] * (longest - len(ids))] for ids in pair])
    mask = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids in pair])
    found = model(input_ids=ids, attention_mask=mask, use_cache=False).get("aux_loss")
    model.config.output_router_logits = False
    return 0.0 if found is None else float(found)


def prepare(shared: Path) -> None:
    """Tokenizer, texts and pictures that all share."""
    import numpy as np
    from PIL import Image

    shared.mkdir(parents=True, exist_ok=True)
    write_tokenizer(shared / "tokenizer", TEXTS)
    write_json_lines(shared / "texts.jsonl", [{"text": text} for text in TEXTS])
    random = np.random.default_rng(0)
    for place in range(16):
        file = shared / "pictures" / f"class{place % 2}" / f"{place}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(random.integers(0, 255, (64, 64, 3), dtype=np.uint8)).save(file)
