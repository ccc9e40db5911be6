"""Image classification: digits as files, mixing inside a micro-batch, a confusion matrix."""

from __future__ import annotations

import csv
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.scenes import write_digits
from trainer_backend.errors import UsageError
from trainer_backend.kinds.image_classification import ImageClassificationData, ImageClassificationTask
from trainer_backend.tasks.vision.classification import ImageClassification

SMALL: dict[str, Any] = {"model": "resnet10t", "image_size": 32, "channels": 1, "batch_norm": "group-norm"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recipe's folder with digits."""
    write_digits(tmp_path / "digits")
    return tmp_path


def make(
    folder: Path, *, warned: list[Any] | None = None, data: dict[str, Any] | None = None, **task: Any
) -> Any:
    """The task as a recipe asks for it."""
    say = [] if warned is None else warned
    return ImageClassification(
        ImageClassificationTask(**(SMALL | task)),
        ImageClassificationData(**({"path": "digits"} | (data or {}))),
        folder=folder,
        accumulation_steps=4,
        warn=lambda code, values: say.append((code, values)),
    )


@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}])
def test_micro_batches_add_up_to_the_gradient_of_the_large_batch(
    folder: Path, options: dict[str, Any]
) -> None:
    """At 1e-12 in fp64, label smoothing included."""
    task = make(folder, crop=False, flip=False, **options)
    torch.manual_seed(0)
    model = task.model().double()
    train = task.datasets().train
    items = [train[index] for index in range(0, 60, 10)]

    def gradient(parts: list[list[Any]]) -> torch.Tensor:
        model.zero_grad()
        for part in parts:
            batch = {name: value.double() for name, value in task.collate(part).items()}
            task.loss(model, batch).total.backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]) / len(items)

    whole, parts = gradient([items]), gradient([items[:1], items[1:3], items[3:]])
    assert (whole - parts).norm() <= 1e-12 * whole.norm()


@pytest.mark.parametrize("how", [{"mixup": 0.4}, {"cutmix": 1.0}, {"mixup": 0.4, "cutmix": 1.0}])
def test_mixing_stays_inside_a_micro_batch_and_follows_the_seed(folder: Path, how: dict[str, Any]) -> None:
    """Targets are shares of the micro-batch's own classes; validation is never mixed."""
    task = make(folder, **how)
    train = task.datasets().train
    items = [train[0], train[30]]
    torch.manual_seed(3)
    first = task.collate_training(items)
    torch.manual_seed(3)
    again = task.collate_training(items)
    assert torch.equal(first["images"], again["images"])
    torch.testing.assert_close(first["targets"].sum(1), torch.ones(2))
    own = {label for _, label in items}
    assert set(first["targets"].sum(0).nonzero().flatten().tolist()) <= own
    assert torch.equal(task.collate(items)["targets"].max(1).values, torch.ones(2))


def test_the_confusion_matrix_counts_every_image_once(folder: Path, tmp_path: Path) -> None:
    """Rows are true classes, and a second evaluation starts from nothing."""
    task = make(folder)
    model = task.model().eval()
    validation = task.datasets().validation
    for _ in range(2):
        for index in range(len(validation)):
            assert set(task.evaluate(model, task.collate([validation[index]]))) == {"accuracy"}
        ((kind, path, _),) = task.artifacts(model, tmp_path / "artifacts")
        rows = list(csv.reader(path.read_text("utf-8").splitlines()))
        assert kind == "table"
        assert rows[0][1:] == list("0123456789")
        assert sum(int(cell) for row in rows[1:] for cell in row[1:]) == len(validation)


def test_a_fraction_of_nothing_is_no_validation(folder: Path) -> None:
    """Every image is trained on."""
    found = make(folder, data={"validation_fraction": 0}).datasets()
    assert (len(found.train), found.validation) == (120, None)


def test_every_class_is_held_out_alike(folder: Path) -> None:
    """A fifth of twelve is two."""
    task = make(folder)
    assert len(task.datasets().validation) == 20
    assert len(task.datasets().train) == 100


def test_paths_may_start_at_the_home_folder(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`~` is expanded in the recipe's paths and in those of a CSV."""
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    data = {"path": "~/digits", "validation_path": "~/digits"}
    assert make(elsewhere, data=data).classes == [str(digit) for digit in range(10)]
    files = sorted((folder / "digits").rglob("*.png"))[::6]
    lines = [f"~/{file.relative_to(folder)},{file.parent.name}" for file in files]
    (elsewhere / "list.csv").write_text("path,label\n" + "\n".join(lines), encoding="utf-8")
    assert len(make(elsewhere, data={"path": "list.csv"}).datasets().train) == 10


def test_a_csv_names_files_and_classes(folder: Path) -> None:
    """Paths start at the CSV's folder."""
    files = sorted((folder / "digits").rglob("*.png"))[:40]
    lines = [f"{file.relative_to(folder)},{file.parent.name}" for file in files]
    (folder / "list.csv").write_text("path,label\n" + "\n".join(lines), encoding="utf-8")
    assert make(folder, data={"path": "list.csv"}).classes == ["0", "1", "2", "3"]
    (folder / "list.csv").write_text("file,class\na,b\n", encoding="utf-8")
    with pytest.raises(UsageError, match="columns path and label"):
        make(folder, data={"path": "list.csv"})
    (folder / "list.csv").write_text("path,label\na.png,\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"list\.csv:2"):
        make(folder, data={"path": "list.csv"})


def test_batch_norm_is_slowed_frozen_or_replaced(folder: Path) -> None:
    """M' = 1 - (1 - m)^(1/N) for N = 4."""
    norms = [
        layer
        for layer in make(folder, batch_norm="adjust-momentum").model().modules()
        if hasattr(layer, "momentum")
    ]
    assert norms
    assert all(layer.momentum == pytest.approx(1 - 0.9**0.25) for layer in norms)
    frozen = make(folder, batch_norm="freeze").model().train()
    assert not any(layer.training for layer in frozen.modules() if isinstance(layer, torch.nn.BatchNorm2d))
    replaced = make(folder, batch_norm="group-norm").model()
    assert not any(isinstance(layer, torch.nn.modules.batchnorm._BatchNorm) for layer in replaced.modules())
    kept = make(folder, batch_norm="keep").model()
    assert any(getattr(layer, "momentum", None) == 0.1 for layer in kept.modules())


@pytest.mark.parametrize(
    ("data", "task", "words"),
    [
        ({"path": "none"}, {}, "neither a folder nor a .csv"),
        ({}, {"model": "resnet18_of_nobody"}, "resnet18_of_nobody"),
        ({"path": "digits/1"}, {}, "lies in no class's folder"),
    ],
)
def test_what_does_not_fit_is_a_sentence(
    folder: Path, data: dict[str, str], task: dict[str, Any], words: str
) -> None:
    """Paths and names."""
    with pytest.raises(UsageError) as caught:
        make(folder, data=data, **task).model()
    assert words in str(caught.value)


def test_a_broken_image_is_named_or_skipped(folder: Path) -> None:
    """And counted."""
    (folder / "digits" / "3" / "broken.png").write_bytes(b"not a picture")
    with pytest.raises(UsageError, match=r"broken\.png cannot be read"):
        make(folder)
    warned: list[Any] = []
    make(folder, warned=warned, data={"broken": "skip"})
    assert warned == [("images-skipped", {"count": 1})]


def test_one_image_a_class_trains_and_nothing_is_held_out(folder: Path) -> None:
    """And that is said; one class alone is refused."""
    (folder / "few.csv").write_text(
        "path,label\n"
        + "".join(f"{next((folder / 'digits' / c).iterdir()).relative_to(folder)},{c}\n" for c in "12"),
        encoding="utf-8",
    )
    warned: list[Any] = []
    found = make(folder, warned=warned, data={"path": "few.csv"}).datasets()
    assert (len(found.train), found.validation) == (2, None)
    assert warned == [("no-validation-data", {"samples": 2})]
    (folder / "few.csv").write_text((folder / "few.csv").read_text().rsplit("\n", 2)[0], encoding="utf-8")
    with pytest.raises(UsageError, match="one class only"):
        make(folder, data={"path": "few.csv"})
    (folder / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no"):
        make(folder, data={"path": "empty"})


def test_a_library_that_is_missing_is_a_sentence_with_the_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kind needs timm."""
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(
        UsageError,
        match=re.escape(
            "needs timm. Run: pip install imagecodecs pillow segmentation-models-pytorch tifffile timm"
        ),
    ):
        make(folder).model()


@pytest.mark.parametrize("batch_norm", ["keep", "group-norm"])
def test_the_export_is_a_network_that_timm_loads_with_its_classes(folder: Path, batch_norm: str) -> None:
    """Same answers; what pictures go through stands beside it; exchanged norms are said."""
    import timm

    warned: list[Any] = []
    task = make(folder, warned=warned, batch_norm=batch_norm)
    model = task.model().eval()
    (saved,) = task.export(model, folder / "export")
    config = json.loads((saved / "config.json").read_text("utf-8"))
    described = json.loads((saved / "input.json").read_text("utf-8"))
    assert list(described["classes"].values()) == task.classes
    assert (described["mean"], described["image_size"], described["channels"]) == ([0.5], 32, 1)
    assert [code for code, _ in warned] == (["export-group-norm"] if batch_norm == "group-norm" else [])
    if batch_norm == "keep":
        assert config["label_names"] == task.classes
        again = timm.create_model(f"local-dir:{saved}", pretrained=True).eval()
        image = torch.randn(1, 1, 32, 32)
        assert torch.equal(again(image), model(image))
