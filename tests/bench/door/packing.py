"""Packed rows beside padded ones: the same gradient, and more tokens a second where half would be padding.

packed_rel_error_fp64         the worse of sdpa and eager: relative L2 of all gradients, two packed rows a
                              micro-batch against one sample at a time; eager's fp32 softmax is widened
packed_tokens_per_s_ratio     tokens of samples a second, forward and backward, packed over padded; median
                              over rounds that time both
padded_share                  of the padded rows' tokens, in that comparison
packed_full_share             of the packed rows' tokens that are samples'
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import torch

from tests.support.language_models import write_json_lines, write_model
from trainer_backend.kinds.causal_lm import CausalLMData, CausalLMTask
from trainer_backend.tasks.causal_lm import CausalLM
from trainer_backend.verify.torch_modes import ControlledRun

ROWS: Final = 8
LONGEST: Final = 256
ROUNDS: Final = 7


def write_wide_model(folder: Path) -> None:
    """The tests' Llama, four times as wide and deep: attention and products, not overhead, take the time."""
    import transformers

    write_model(folder)
    config = transformers.AutoConfig.from_pretrained(
        folder, hidden_size=128, intermediate_size=512, num_hidden_layers=4
    )
    torch.manual_seed(0)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def made(folder: Path, **options: Any) -> CausalLM:
    """A task over the folder's data."""
    settings: dict[str, Any] = {"model": "model", "method": "full", "max_length": LONGEST} | options
    data = CausalLMData(path="data.jsonl", validation_fraction=0.02, num_workers=0)
    return CausalLM(CausalLMTask(**settings), data, folder=folder)


def micro_batches(task: CausalLM, rows: int) -> list[Any]:
    """All training items, `rows` a micro-batch."""
    train = task.datasets().train
    items = [train[index] for index in range(len(train))]
    return [task.collate(items[begin : begin + rows]) for begin in range(0, len(items), rows)]


def gradients(task: CausalLM, model: torch.nn.Module, batches: list[Any]) -> torch.Tensor:
    """Of the sum over all micro-batches, over their weight; parameters end to end."""
    model.zero_grad()
    weight = 0.0
    for batch in batches:
        next(iter(task.loss(model, batch))).total.backward()  # type: ignore[no-untyped-call]
        weight += task.weights(batch)["loss"]
    found = [parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None]
    return torch.cat(found) / weight


def error_fp64(folder: Path) -> float:
    """The worse of two attentions."""
    worst = 0.0
    for attention in ("sdpa", "eager"):
        packed = made(folder, layout="packing", attention=attention)
        alone = made(folder, attention=attention)
        model = packed.model().double()
        alone.model()  # what it decides about masks
        with ControlledRun(widen=True):
            ours = gradients(packed, model, micro_batches(packed, 2))
            right = gradients(alone, model, micro_batches(alone, 1))
        worst = max(worst, float((ours - right).norm() / right.norm()))
    return worst


def speeds(folder: Path) -> dict[str, float]:
    """The keys that are about time."""
    tasks = {"packed": made(folder, layout="packing"), "padded": made(folder)}
    model = tasks["packed"].model()
    tasks["padded"].model()
    batches = {name: micro_batches(task, ROWS) for name, task in tasks.items()}
    tokens = {
        name: sum(int((batch.weights != 0).sum()) for batch in found) for name, found in batches.items()
    }
    held = {name: sum(batch.tokens.numel() for batch in found) for name, found in batches.items()}
    ratios = []
    for turn in range(ROUNDS + 1):
        per_second = {}
        for name in sorted(tasks, reverse=bool(turn % 2)):
            begun = time.perf_counter()
            gradients(tasks[name], model, batches[name])
            per_second[name] = tokens[name] / (time.perf_counter() - begun)
        ratios.append(per_second["packed"] / per_second["padded"])
    attended = sum(int(batch.attended.sum()) for batch in batches["padded"])
    return {
        "packed_tokens_per_s_ratio": round(statistics.median(ratios[1:]), 3),
        "padded_share": round(1 - attended / held["padded"], 3),
        "packed_full_share": round(attended / held["packed"], 3),
    }


def main() -> None:
    """Measure all."""
    with tempfile.TemporaryDirectory() as home:
        folder = Path(home)
        write_wide_model(folder / "model")
        # One in eight fills a row; the rest are short, so that half of what is padded is padding.
        lengths = [LONGEST - 8 if number % 8 == 0 else 104 for number in range(264)]
        write_json_lines(
            folder / "data.jsonl",
            [
                {"text": "".join(chr(97 + (number + at) % 26) for at in range(n))}
                for number, n in enumerate(lengths)
            ],
        )
        result = speeds(folder)
        write_json_lines(folder / "data.jsonl", [{"text": "abc" * (3 + 5 * n % 60)} for n in range(24)])
        print(json.dumps({"packed_rel_error_fp64": error_fp64(folder), **result}))


if __name__ == "__main__":
    main()
