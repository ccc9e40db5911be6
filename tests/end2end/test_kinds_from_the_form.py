"""Each kind of task, from its recipe in the form to what it made in the Results tab and left behind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from PySide6.QtWidgets import QWidget
from pytestqt.qtbot import QtBot

from gradacc_gui import cli
from gradacc_gui.assets import asset
from gradacc_gui.widgets.picture_view import PictureView
from gradacc_gui.window.artifact_cards import GridView, TextView
from gradacc_gui.window.main_window import MainWindow
from gradacc_gui.window.results_tab import ResultsTab
from tests.end2end.hand import Hand
from tests.support.language_models import write_json_lines, write_model
from tests.support.scenes import write_digits, write_scenes
from tests.support.trainers import events
from trainer_backend.protocol import EvaluationMeasured, OptimizerStepMeasured

W = TypeVar("W", bound=QWidget)
MakeWindow = Callable[[], MainWindow]
QUESTION = "what colour is a rose"
SHORT = {
    "run.device": "cpu",
    "schedule.warmup_samples": "32",
    "evaluation.every_samples": "100000",
}
"""One evaluation, at the end."""


def run_through(hand: Hand, recipe: str, **fields: str) -> ResultsTab:
    """A recipe that comes with gradacc, its fields filled in, started, and looked at when it has ended."""
    hand.open_form(asset(f"recipes/{recipe}"))
    for path, text in (SHORT | fields).items():
        hand.fill_in(path, text)
    hand.press_start()
    return hand.wait_for_results()


def measured(results: ResultsTab) -> dict[str, float]:
    """What the Results tab says was measured."""
    return {name: float(value) for name, value in (row[:2] for row in results.measured.table.texts())}


def contents(results: ResultsTab, kind: type[W]) -> list[W]:
    """What the cards show, all of one kind."""
    shown = [card.content for card in results.cards]
    found = [content for content in shown if isinstance(content, kind)]
    assert shown == found
    return found


@pytest.mark.parametrize("method", ["lora", "full"])
def test_a_language_model_is_fine_tuned(
    qtbot: QtBot, make_window: MakeWindow, tmp_path: Path, method: str
) -> None:
    """Its samples can be read, N follows from the effective batch, plain libraries load what it leaves."""
    import transformers

    pairs = [("rose", "red"), ("leaf", "green"), ("sky", "blue"), ("coal", "black")]
    lines = [
        {"prompt": f"what colour is a {thing}", "completion": f" a {thing} is {colour}"}
        for thing, colour in pairs
    ]
    write_model(tmp_path / "model", "llama", [text for line in lines for text in line.values()] * 4)
    data = str(write_json_lines(tmp_path / "data.jsonl", lines * 8))
    hand = Hand(qtbot, make_window())
    results = run_through(
        hand,
        "fine-tune-lora.toml",
        **{
            "task.model": str(tmp_path / "model"),
            "task.method": method,
            "task.max_length": "64",
            "task.generate": QUESTION,
            "task.generate_tokens": "12",
            "task.export_merged": "true",
            "data.path": data,
            "data.validation_path": data,
            "accumulation.effective_batch_size": "8",
            "run.epochs": "10" if method == "full" else "4",
            "optimizer.learning_rate": "0.01",
        },
    )
    assert hand.window.run is not None
    run = hand.window.run.run
    steps = events(run, OptimizerStepMeasured)
    assert {step.accumulation_steps for step in steps} == {4}
    assert steps[0].loss is not None
    assert measured(results)["Loss"] < (0.3 if method == "full" else 0.97) * steps[0].loss
    (samples,) = contents(results, TextView)
    assert samples.toPlainText().startswith(QUESTION)
    if method == "full":
        assert "a rose is red" in samples.toPlainText()
    left = run.path / "export"
    assert {folder.name for folder in left.iterdir()} == (
        {"model"} if method == "full" else {"adapter", "merged"}
    )
    plain = transformers.AutoModelForCausalLM.from_pretrained(
        left / ("model" if method == "full" else "merged")
    )
    assert plain.config.model_type == "llama"


def test_images_are_segmented(qtbot: QtBot, make_window: MakeWindow, tmp_path: Path) -> None:
    """Overlays stand in the Results tab; micro-batch 2, effective batch 32."""
    write_scenes(tmp_path, count=5, side=64)
    hand = Hand(qtbot, make_window())
    results = run_through(
        hand,
        "segment-images.toml",
        **{
            "task.architecture": "segformer",
            "task.encoder": "tu-mobilenetv3_small_050",
            "task.classes": "3",
            "task.tile_size": "32",
            "task.overlays": "2",
            "data.images": str(tmp_path / "images"),
            "data.masks": str(tmp_path / "masks"),
            "data.num_workers": "0",
            "run.epochs": "6",
        },
    )
    assert hand.window.run is not None
    assert {step.accumulation_steps for step in events(hand.window.run.run, OptimizerStepMeasured)} == {16}
    assert 0 < measured(results)["Mean iou"] <= 1
    overlays = contents(results, PictureView)
    assert len(overlays) == 2
    assert all(overlay.holds_picture for overlay in overlays)


def test_images_are_classified(qtbot: QtBot, make_window: MakeWindow, tmp_path: Path) -> None:
    """The confusion matrix stands in the Results tab and counts every held-out image."""
    write_digits(tmp_path / "digits", per_class=8)
    hand = Hand(qtbot, make_window())
    results = run_through(
        hand,
        "classify-images.toml",
        **{
            "task.model": "resnet10t",
            "task.image_size": "32",
            "task.channels": "1",
            "task.crop": "false",
            "task.flip": "false",
            "data.path": str(tmp_path / "digits"),
            "data.num_workers": "0",
            "accumulation.micro_batch_size": "8",
            "accumulation.effective_batch_size": "32",
            "run.epochs": "2",
        },
    )
    assert 0 <= measured(results)["Accuracy"] <= 1
    (matrix,) = contents(results, GridView)
    cells = [
        matrix.grid.index(row, column).data()
        for row in range(matrix.grid.rowCount())
        for column in range(1, matrix.grid.columnCount())
    ]
    assert len(cells) == 100
    assert sum(map(int, cells)) == 20


def test_a_task_of_ones_own_is_trained(
    qtbot: QtBot, make_window: MakeWindow, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`gradacc new task`, its recipe opened in the form, options and length changed there."""
    assert cli.main(["new", "task", str(tmp_path / "my_task.py")]) == 0
    assert "my_task.toml" in capsys.readouterr().out
    hand = Hand(qtbot, make_window())
    hand.open_form(tmp_path / "my_task.toml")
    for path, text in {"run.device": "cpu", "run.epochs": "3", "accumulation.micro_batch_size": "32"}.items():
        hand.fill_in(path, text)
    hand.press_start()
    results = hand.wait_for_results()
    assert hand.window.run is not None
    run = hand.window.run.run
    assert len(events(run, EvaluationMeasured)) == 3
    assert results.place.text().startswith("evaluation 3 of 3")
    assert measured(results)["Loss"] < 0.5
    assert {step.samples for step in events(run, OptimizerStepMeasured)} == {128}
    assert "artifacts(model, folder)" in results.more.text()
