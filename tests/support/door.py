"""The cases of tests/data/door: a recipe is made for each, and what its data becomes is read back."""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
from pathlib import Path
from typing import Any

DOOR = Path(__file__).parents[1] / "data" / "door"


@functools.cache
def cases() -> tuple[dict[str, Any], ...]:
    """Every case: id, what, input, recipe, right."""
    return tuple(json.loads((DOOR / "expected.json").read_text("utf-8")))


@dataclasses.dataclass(frozen=True)
class ReadBack:
    """What a text case became."""

    refused: str | None
    said: tuple[str, ...]
    samples: int
    rows: tuple[Any, ...]
    """`TokenRow`s in the order of the data."""
    tokenizer: Any = None

    @property
    def learnt(self) -> list[str]:
        """Each run of tokens with a loss, as text, in the order of the data."""
        found: list[str] = []
        for row in self.rows:
            before = 0.0
            for text, weight in zip(row.texts, row.weights, strict=True):
                if weight and not before:
                    found.append("")
                if weight:
                    found[-1] += text
                before = weight
        return found


def write_door_model(folder: Path, tokenizer: str) -> Path:
    """A model directory with one of the door's tokenizers and a configuration; weights are not read."""
    import transformers

    target = folder / tokenizer
    shutil.copytree(DOOR / tokenizer, target)
    rows = len(transformers.AutoTokenizer.from_pretrained(target))
    transformers.LlamaConfig(vocab_size=rows, hidden_size=8, num_attention_heads=2).save_pretrained(target)
    return target


def read_case(case: dict[str, Any], folder: Path) -> ReadBack:
    """Make the recipe of a case and read its data as a run would."""
    asked = dict(case["recipe"])
    model = write_door_model(folder, asked.pop("tokenizer"))
    options = {"max_length": asked.pop("max_length", 1024)}
    return read_text(model, DOOR / case["input"], options, asked)


def read_text(
    model: Path, path: Path | str, task: dict[str, Any], data: dict[str, Any], *, rows: int = 10**6
) -> ReadBack:
    """What a recipe with these tables makes of a path."""
    import transformers

    from trainer_backend.errors import GradaccError
    from trainer_backend.kinds.task_warnings import warning_sentence
    from trainer_backend.preflight.first_window import Heard, first_window, read_data
    from trainer_backend.recipe import parse_document, recipe_from_document

    document = parse_document("")
    document["run"] = {"epochs": 1}
    document["task"] = {"kind": "causal-lm", "model": str(model), "method": "full"} | task
    document["data"] = {"path": str(path), "validation_fraction": 0.0, "shuffle": False} | data
    document["accumulation"] = {"micro_batch_size": rows, "gradient_accumulation_steps": 1}
    heard: Heard = []
    refused, window = None, None
    try:
        window = first_window(read_data(recipe_from_document(document, folder=model.parent), heard))
    except GradaccError as error:
        refused = str(error)
    tokenizer = transformers.AutoTokenizer.from_pretrained(model)
    said = tuple(warning_sentence(code, values) for code, values in heard)
    if window is None:
        return ReadBack(refused, said, 0, (), tokenizer)
    return ReadBack(refused, said, window.samples or 0, window.rows, tokenizer)
