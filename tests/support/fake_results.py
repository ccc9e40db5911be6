"""Made-up runs whose evaluations left pictures, texts and tables, without torch."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, Literal

import msgspec
from PySide6.QtCore import Qt
from PySide6.QtGui import QColor, QImage, QPainter

from tests.support.fake_runs import BackdatedWriter, Plan, events, new_run
from trainer_backend.protocol import ArtifactSaved, EvaluationMeasured
from trainer_backend.run_directory import RunDirectory

CONFUSION: Final = (
    "true class,cat,dog,newt\n"
    "cat,41,6,3\n"
    "dog,9,38,1\n"
    "newt,0,2,50\n"
)  # fmt: skip
PUBLISHED: Final = """
[evaluation]
every_samples = 1_280

[published]
source = "A. Author et al. 2023, table 4"

[published.accumulation]
effective_batch_size = 256

[published.optimizer]
learning_rate = 3e-4
max_grad_norm = 1.0

[published.results]
accuracy = 0.91
"""


class Made(msgspec.Struct, frozen=True):
    """One artifact of each evaluation: its kind, file name and caption."""

    kind: Literal["image", "text", "table"]
    name: str
    caption: str


EACH: Final = (
    Made("image", "overlay-00.png", "scene 12: image, truth, prediction"),
    Made("image", "overlay-01.png", "scene 40: image, truth, prediction"),
    Made("table", "confusion.csv", "confusion matrix: 129 of 150 right"),
    Made("text", "samples.txt", "2 samples"),
)


def write_results(
    folder: Path, plan: Plan, made: Iterable[Made] = EACH, *, run: RunDirectory | None = None, extra: str = ""
) -> RunDirectory:
    """An attempt whose every evaluation made `made`; `extra` is added to the recipe of a new run."""
    if run is None:
        run = new_run(folder, plan)
        run.recipe_path.write_text(run.recipe_path.read_text("utf-8") + extra, "utf-8")
    wanted = tuple(made)
    writer = BackdatedWriter(run.journal_path, attempt=plan.attempt)
    for at, event in events(plan):
        if not isinstance(event, EvaluationMeasured):
            writer.put_at(at, event)
            continue
        writer.put_at(at, msgspec.structs.replace(event, metrics=metrics(event.step)))
        for one in wanted:
            path = f"artifacts/step-{event.step:09d}/{one.name}"
            write_file(run.path / path, one.kind, event.step)
            writer.put_at(at, ArtifactSaved(step=event.step, kind=one.kind, path=path, caption=one.caption))
    writer.close()
    return run


def metrics(step: int) -> Mapping[str, float]:
    """What a made-up evaluation measured."""
    return {"accuracy": 0.9 - 4 / (step + 8), "mean_iou": 0.8 - 6 / (step + 12)}


def write_file(path: Path, kind: str, step: int) -> None:
    """One artifact's file, which tells its step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    match kind:
        case "image":
            picture(step).save(str(path))
        case "table":
            path.write_text(CONFUSION, "utf-8")
        case _:
            text = f"Once, after {step} steps,\n\tthere was a model.\n\nIt said: naïve → ß."
            path.write_text(text, "utf-8")


def picture(step: int, width: int = 480, height: int = 320) -> QImage:
    """A landscape with a number on it."""
    image = QImage(width, height, QImage.Format.Format_RGB32)
    image.fill(QColor("#31465c"))
    painter = QPainter(image)
    painter.fillRect(0, height // 2, width, height // 2, QColor("#3f6b3c"))
    painter.setBrush(QColor("#e6a23c"))
    painter.drawEllipse(width // 2, height // 5, height // 4, height // 4)
    painter.setPen(Qt.GlobalColor.white)
    for place in range(min(step // 10, 30)):  # strokes, so that no font is needed
        painter.drawLine(8 + 6 * place, height - 30, 8 + 6 * place, height - 10)
    painter.end()
    return image
