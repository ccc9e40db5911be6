"""Each kind of task, through the real trainer on real files: learnt past a bar, left behind, certified."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from gradacc_gui.assets import asset
from tests.support.language_models import write_json_lines, write_model
from tests.support.scenes import write_digits, write_scenes
from tests.support.trainers import events, make_run, merged, run_here
from trainer_backend.protocol import (
    ArtifactSaved,
    EvaluationMeasured,
    OptimizerStepMeasured,
    RunFailed,
    RunFinished,
    Warned,
)
from trainer_backend.recipe import load_recipe
from trainer_backend.run_directory import RunDirectory
from trainer_backend.verify.command import main as verify

# peft's and the library's own calls of names that the library has renamed.
pytestmark = pytest.mark.filterwarnings("ignore:.*is_activation_checkpointing.*:FutureWarning")

CPU: dict[str, Any] = {"run": {"device": "cpu", "precision": "fp32"}, "checkpoint": {"keep": 1}}
QUESTIONS = [
    {
        "messages": [
            {"role": "user", "content": f"what colour is a {thing}"},
            {"role": "assistant", "content": f"a {thing} is {colour}"},
        ]
    }
    for thing, colour in [
        ("rose", "red"),
        ("leaf", "green"),
        ("sky", "blue"),
        ("sun", "yellow"),
        ("coal", "black"),
    ]
]
LIGHT = {
    "kind": "segmentation",
    "architecture": "segformer",
    "encoder": "tu-mobilenetv3_small_050",
    "classes": 3,
}
"""A network that two CPU cores train in seconds."""


def trained(folder: Path, recipe: dict[str, Any]) -> RunDirectory:
    """Run a recipe to its end in this process."""
    run = make_run(folder, merged(CPU, recipe))
    code = run_here(run)
    failed = events(run, RunFailed)
    assert not failed, failed
    assert code == 0
    assert events(run, RunFinished)
    return run


def language_recipe(method: str, **more: dict[str, Any]) -> dict[str, Any]:
    """Fine-tuning of a tiny model on five questions."""
    return merged(
        {
            "run": {"max_optimizer_steps": 60},
            "task": {"kind": "causal-lm", "model": "model", "method": method, "max_length": 64},
            "data": {"path": "data.jsonl", "validation_path": "data.jsonl"},
            "accumulation": {"micro_batch_size": 2, "gradient_accumulation_steps": 4},
            "optimizer": {"learning_rate": 1e-2},
            "evaluation": {"every_samples": 240},
        },
        more,
    )


def language_files(folder: Path, shape: Any = "llama") -> Path:
    """Model and questions."""
    folder.mkdir(parents=True, exist_ok=True)
    texts = [message["content"] for question in QUESTIONS for message in question["messages"]]
    write_model(folder / "model", shape, texts * 4)
    write_json_lines(folder / "data.jsonl", QUESTIONS * 4)
    return folder


@pytest.mark.parametrize(
    "task",
    [
        {"generate": ["<|user|>what colour is a rose<|end|><|assistant|>"], "generate_tokens": 12},
        {"layout": "packing", "max_length": 40},
    ],
)
def test_a_language_model_learns_its_answers(tmp_path: Path, task: dict[str, Any]) -> None:
    """The loss falls below a third of the first, N = 4 on ragged answers; what is saved loads plainly."""
    import transformers

    small = {"micro_batch_size": 1, "gradient_accumulation_steps": 2} if "layout" in task else {}
    run = trained(language_files(tmp_path), language_recipe("full", task=task, accumulation=small))
    steps = events(run, OptimizerStepMeasured)
    assert len({step.weight for step in steps}) > 1  # ragged
    assert_fell(run, 0.33)
    model = transformers.AutoModelForCausalLM.from_pretrained(run.path / "export" / "model")
    assert model.config.vocab_size > 0
    if "generate" in task:
        texts = [run.path / artifact.path for artifact in events(run, ArtifactSaved)]
        assert "a rose is red" in texts[-1].read_text("utf-8")


def assert_fell(run: RunDirectory, ratio: float) -> None:
    """The last evaluation's loss is below `ratio` of the first step's."""
    first, last = events(run, OptimizerStepMeasured)[0].loss, events(run, EvaluationMeasured)[-1].loss
    assert first is not None
    assert last is not None
    assert last < ratio * first


def test_adapters_teach_a_trained_model_other_answers(tmp_path: Path) -> None:
    """LoRA on the whole-trained model; plain peft loads the adapter, plain transformers the merged model."""
    import peft
    import transformers

    folder = language_files(tmp_path)
    base = trained(folder, language_recipe("full")).path / "export" / "model"
    others = [json.loads(json.dumps(question).replace(" is ", " was ")) for question in QUESTIONS]
    write_json_lines(folder / "data.jsonl", others * 4)
    task = {"model": str(base), "lora_rank": 16, "export_merged": True, "activation_checkpointing": True}
    run = trained(folder, language_recipe("lora", task=task))
    assert_fell(run, 0.5)
    export = run.path / "export"
    plain = peft.PeftModel.from_pretrained(
        transformers.AutoModelForCausalLM.from_pretrained(base), export / "adapter"
    ).eval()
    merged_model = transformers.AutoModelForCausalLM.from_pretrained(export / "merged").eval()
    tokens = torch.arange(20)[None]
    torch.testing.assert_close(
        plain(input_ids=tokens).logits, merged_model(input_ids=tokens).logits, rtol=1e-3, atol=1e-3
    )


def test_large_scenes_are_segmented(tmp_path: Path) -> None:
    """Mean IoU past 0.7 in tiles, micro-batch 2, effective batch 16; overlays are made."""
    write_scenes(tmp_path, count=8, side=128)
    run = trained(
        tmp_path,
        {
            "run": {"max_optimizer_steps": 24},
            "task": LIGHT | {"tile_size": 64, "batch_norm": "group-norm", "overlays": 2},
            "data": {"images": "images", "masks": "masks"},
            "accumulation": {"micro_batch_size": 2, "effective_batch_size": 16, "normalization": "samples"},
            "optimizer": {"learning_rate": 4e-3},
            "evaluation": {"every_samples": 100_000},
        },
    )  # fmt: skip
    (measured,) = events(run, EvaluationMeasured)
    assert measured.metrics["mean_iou"] > 0.7
    assert {step.accumulation_steps for step in events(run, OptimizerStepMeasured)} == {8}
    assert [artifact.kind for artifact in events(run, ArtifactSaved)] == ["image", "image"]


def test_digits_are_classified(tmp_path: Path) -> None:
    """Accuracy past 0.8 on scikit-learn's digits; the confusion matrix counts every held-out image."""
    write_digits(tmp_path / "digits", per_class=40)
    run = trained(
        tmp_path,
        {
            "run": {"max_optimizer_steps": 110},
            "task": {
                "kind": "image-classification", "model": "test_resnet", "image_size": 32, "channels": 1,
                "flip": False, "crop": False, "batch_norm": "group-norm",
            },
            "data": {"path": "digits"},
            "accumulation": {"micro_batch_size": 8, "effective_batch_size": 32, "normalization": "samples"},
            "optimizer": {"learning_rate": 2e-3},
            "evaluation": {"every_samples": 100_000},
        },
    )  # fmt: skip
    (measured,) = events(run, EvaluationMeasured)
    assert measured.metrics["accuracy"] > 0.8
    (table,) = events(run, ArtifactSaved)
    rows = (run.path / table.path).read_text("utf-8").splitlines()[1:]
    assert sum(int(cell) for row in rows for cell in row.split(",")[1:]) == 80


def test_mixup_reaches_the_training_and_never_the_evaluation(tmp_path: Path) -> None:
    """At learning rate 0 the same model: training losses differ, the evaluation's does not."""
    write_digits(tmp_path / "digits", per_class=6)
    losses, held_out = [], []
    for mixup in (0.0, 5.0):
        recipe: dict[str, Any] = {
            "run": {"max_optimizer_steps": 2},
            "task": {
                "kind": "image-classification", "model": "test_resnet", "image_size": 32, "channels": 1,
                "flip": False, "crop": False, "batch_norm": "group-norm", "mixup": mixup,
            },
            "data": {"path": "digits"},
            "accumulation": {"micro_batch_size": 4, "gradient_accumulation_steps": 2},
            "optimizer": {"learning_rate": 0.0},
            "evaluation": {"every_samples": 100_000},
        }  # fmt: skip
        run = trained(tmp_path, recipe)
        losses.append([step.loss for step in events(run, OptimizerStepMeasured)])
        held_out.append(events(run, EvaluationMeasured)[-1].loss)
    assert losses[0] != losses[1]
    assert held_out[0] == held_out[1]


def verdict(folder: Path, recipe: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    """Exit code and report of the certificate of a recipe."""
    run = make_run(folder, merged(CPU, recipe))
    code = verify([str(run.recipe_path), "--json", "--steps", "2,4", "--samples", "8"])
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    return code, report


def test_a_language_model_is_certified_equal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """At 1e-12 in fp64, ragged answers and adapters included."""
    recipe = language_recipe("lora", task={"lora_rank": 4})
    code, report = verdict(language_files(tmp_path), recipe, capsys)
    assert (code, report["verdict"], report["reference"]) == (0, "equal", "fp64")


def test_a_mixture_of_experts_is_certified_by_its_stated_definition(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The router's loss is a property of the micro-batch, and the recipe says so.

    The library's kernel for experts takes no fp64, so the reference may be fp32: the certificate says which.
    """
    recipe = language_recipe("full", accumulation={"verdict": "per-micro-batch"})
    code, report = verdict(language_files(tmp_path, "mixtral"), recipe, capsys)
    assert (code, report["verdict"]) == (0, "per-micro-batch")
    said = {remark["code"] for remark in report["remarks"]}
    assert report["reference"] == "fp64" or "fp64-cannot-run" in said


@pytest.mark.parametrize(
    ("task", "expected"),
    [
        ({"batch_norm": "group-norm"}, "equal"),
        ({"batch_norm": "keep"}, "per-micro-batch"),
        ({"batch_norm": "group-norm", "dice_over": "micro-batch"}, "per-micro-batch"),
    ],
)
def test_segmentation_is_certified_as_it_declares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], task: dict[str, Any], expected: str
) -> None:
    """Cross-entropy and per-image Dice are equal; BatchNorm and per-micro-batch Dice say what they are."""
    torch.manual_seed(0)
    write_scenes(tmp_path, count=4, side=96)
    recipe = {
        "run": {"max_optimizer_steps": 1},
        "task": LIGHT | {"encoder": "tu-test_resnet", "tile_size": 32} | task,
        "data": {"images": "images", "masks": "masks"},
        "accumulation": {"micro_batch_size": 2, "gradient_accumulation_steps": 2, "verdict": expected},
    }
    code, report = verdict(tmp_path, recipe, capsys)
    assert (code, report["verdict"], report["reference"]) == (0, expected, "fp64")


SMALL_ENOUGH: dict[str, dict[str, Any]] = {
    "stdlib-gpt": {"task": {"context_length": 16, "layers": 1, "width": 16, "heads": 1}},
    "fine-tune-lora": {"task": {"model": "model", "max_length": 64}, "data": {"path": "data.jsonl"}},
    "segment-images": {
        "task": {"architecture": "segformer", "encoder": LIGHT["encoder"], "classes": 3, "tile_size": 32},
        "data": {"images": "images", "masks": "masks"},
    },
    "classify-images": {"task": {"model": "test_resnet", "image_size": 32}, "data": {"path": "digits"}},
}
"""What must be said of files, and what makes two CPU cores enough; all else stays as each recipe has it."""


@pytest.mark.parametrize("name", SMALL_ENOUGH)
def test_each_recipe_that_comes_along_is_certified_as_it_declares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    """Equal, at 1e-12 in fp64: mixup, class-wise Dice, LoRA and ragged answers included."""
    shipped = load_recipe(asset(f"recipes/{name}.toml"))
    match name:
        case "fine-tune-lora":
            language_files(tmp_path)
        case "segment-images":
            write_scenes(tmp_path, count=4, side=64)
        case "classify-images":
            write_digits(tmp_path / "digits", per_class=4)
    code, report = verdict(tmp_path, merged(shipped.document.unwrap(), SMALL_ENOUGH[name]), capsys)
    assert (code, report["verdict"], report["expected"]) == (0, "equal", "equal")
    exact = [row for row in report["comparisons"] if row["limit"] <= 1e-12]
    assert {row["steps"] for row in exact} >= {2, 4}
    assert all(row["error"] <= row["limit"] for row in exact)


@pytest.mark.parametrize(
    ("batch_norm", "expected"), [("adjust-momentum", "per-micro-batch"), ("freeze", "equal")]
)
def test_classification_is_certified_as_it_declares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], batch_norm: str, expected: str
) -> None:
    """BatchNorm says that it sees one micro-batch at a time; frozen it is equal."""
    write_digits(tmp_path / "digits", per_class=4)
    recipe = {
        "run": {"max_optimizer_steps": 1},
        "task": {"kind": "image-classification", "model": "test_resnet", "image_size": 32}
        | {"batch_norm": batch_norm},
        "data": {"path": "digits"},
        "accumulation": {"micro_batch_size": 2, "gradient_accumulation_steps": 2, "verdict": expected},
    }
    code, report = verdict(tmp_path, recipe, capsys)
    assert (code, report["verdict"], report["reference"]) == (0, expected, "fp64")


def test_one_sample_is_an_epoch_of_one_short_window(tmp_path: Path) -> None:
    """N = 4 micro-batches of 2 are asked for, one of 1 is there: it is stepped over its own weight."""
    folder = language_files(tmp_path)
    write_json_lines(folder / "data.jsonl", QUESTIONS[:1])
    recipe = language_recipe("full", run={"max_optimizer_steps": 3}, data={"validation_path": ""})
    del recipe["evaluation"]
    run = trained(folder, recipe)
    steps = events(run, OptimizerStepMeasured)
    assert [(step.micro_batches, step.samples) for step in steps] == [(1, 1)] * 3
    assert "no-validation-data" in {warned.code for warned in events(run, Warned)}


def test_broken_lines_that_are_skipped_are_said_in_the_journal(tmp_path: Path) -> None:
    """As a warning with the count."""
    folder = language_files(tmp_path)
    with (folder / "data.jsonl").open("a", encoding="utf-8") as file:
        file.write("{broken\n")
    run = trained(folder, language_recipe("full", run={"max_optimizer_steps": 1}, data={"broken": "skip"}))
    codes = {warned.code: warned.values for warned in events(run, Warned)}
    assert codes["records-skipped"]["count"] == 1
