"""What is trained: a recipe and its files for each kind and size."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from tests.support.language_models import write_json_lines, write_model, write_tokenizer
from tests.support.scenes import write_digits, write_scenes
from tests.support.trainers import make_run, merged

STEPS: Final = 8
COMMON: Final[dict[str, Any]] = {
    "run": {"device": "cpu", "precision": "fp32", "epochs": 1_000_000},
    "data": {"shuffle": False},
    "accumulation": {"gradient_accumulation_steps": STEPS},
    "optimizer": {"learning_rate": 1e-4, "max_grad_norm": 1.0},
}


@dataclasses.dataclass(frozen=True)
class Case:
    """One kind at one size."""

    kind: str
    """As in the keys: with underscores."""
    size: str
    """ "small" or "50ms"."""
    rivals: tuple[str, ...]
    """Beside the product and the two loops written by hand."""
    prepare: Callable[[Path], dict[str, Any]]
    """Write the files into a folder; gives the recipe, but for what all share."""
    windows: int
    """Of a turn: the fewest that take 150 ms."""
    turns: int
    """Of each trainer in a round."""
    rounds: int
    """Of each set."""
    sets: int
    """Of fresh processes, one a trainer."""

    @property
    def name(self) -> str:
        """KIND_SIZE."""
        return f"{self.kind}_{self.size}"

    def runs(self, folder: Path) -> Callable[[], Path]:
        """Write the files into `folder`; gives what makes a run directory on them."""
        folder.mkdir(parents=True)
        recipe = merged(COMMON, self.prepare(folder))
        return lambda: make_run(folder, recipe).path


def texts(count: int, words: int) -> list[str]:
    """Made-up sentences of a small vocabulary, longer than any context here."""
    chance = random.Random(0)  # noqa: S311 - not for secrets
    vocabulary = [
        "loss",
        "batch",
        "step",
        "norm",
        "the",
        "of",
        "a",
        "falls",
        "rises",
        "after",
        "model",
        "rate",
    ]
    return [" ".join(chance.choices(vocabulary, k=words)) for _ in range(count)]


def causal_lm(length: int, size: int) -> dict[str, Any]:
    """The recipe: plain text, every row exactly `length` tokens."""
    return {
        "task": {
            "kind": "causal-lm",
            "model": "model",
            "method": "full",
            "max_length": length,
            "train_on": "everything",
            "offline": True,
        },
        "data": {"path": "data.jsonl", "validation_path": "held.jsonl"},
        "accumulation": {"micro_batch_size": size},
    }


def write_texts(folder: Path, samples: int, length: int) -> list[str]:
    """Training and validation data."""
    written = texts(samples, length)
    write_json_lines(folder / "data.jsonl", [{"text": text} for text in written])
    write_json_lines(folder / "held.jsonl", [{"text": text} for text in written[:2]])
    return written


def small_language_model(folder: Path) -> dict[str, Any]:
    """A Llama of width 32 and two layers; 2 rows of 32 tokens."""
    write_model(folder / "model", "llama", write_texts(folder, 2 * STEPS * 64, 48)[:64])
    return causal_lm(32, 2)


def language_model(folder: Path) -> dict[str, Any]:
    """A Llama of width 256 and four layers; 2 rows of 128 tokens."""
    import torch
    import transformers

    written = write_texts(folder, 2 * STEPS * 64, 192)
    vocabulary = write_tokenizer(folder / "model", written[:64])
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=256,
        intermediate_size=768,
        num_hidden_layers=4,
        num_attention_heads=4,
        max_position_embeddings=256,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "model")
    return causal_lm(128, 2)


def segmentation(encoder: str, side: int) -> Callable[[Path], dict[str, Any]]:
    """A U-Net on whole scenes of `side` pixels, one a micro-batch, cross-entropy and Dice."""

    def prepare(folder: Path) -> dict[str, Any]:
        write_scenes(folder / "train", STEPS * 32, side)
        write_scenes(folder / "held", 1, side, seed=1)
        return {
            "task": {
                "kind": "segmentation",
                "encoder": encoder,
                "classes": 3,
                "tile_size": 0,
                "flip": False,
            },
            "data": {
                "images": "train/images",
                "masks": "train/masks",
                "validation_images": "held/images",
                "validation_masks": "held/masks",
            },
            "accumulation": {"micro_batch_size": 1},
        }

    return prepare


def image_classification(model: str, side: int, size: int) -> Callable[[Path], dict[str, Any]]:
    """A timm model on digits scaled to `side` pixels."""

    def prepare(folder: Path) -> dict[str, Any]:
        write_digits(folder / "train", per_class=16 * size)  # 20 windows
        write_digits(folder / "held", per_class=1)
        return {
            "task": {
                "kind": "image-classification",
                "model": model,
                "image_size": side,
                "crop": False,
                "flip": False,
            },
            "data": {"path": "train", "validation_path": "held"},
            "accumulation": {"micro_batch_size": size},
        }

    return prepare


CASES: Final = (
    Case("causal_lm", "small", ("hf", "lightning", "accelerate"), small_language_model, 4, 4, 4, 12),
    Case("causal_lm", "50ms", ("hf",), language_model, 1, 1, 10, 12),
    Case(
        "segmentation", "small", ("lightning", "accelerate"),
        segmentation("tu-test_resnet", 64), 1, 16, 1, 14,
    ),
    Case("segmentation", "50ms", ("lightning", "accelerate"), segmentation("resnet18", 96), 1, 1, 5, 12),
    Case(
        "image_classification", "small", ("lightning", "accelerate"),
        image_classification("test_resnet", 32, 2), 2, 8, 3, 12,
    ),
    Case(
        "image_classification", "50ms", ("lightning", "accelerate"),
        image_classification("resnet18", 80, 2), 1, 1, 6, 12,
    ),
)  # fmt: skip
