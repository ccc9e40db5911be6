"""Segmentation: right denominators, honest files, pictures to look at."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.scenes import write_scenes
from trainer_backend.errors import UsageError
from trainer_backend.kinds.segmentation import SegmentationData, SegmentationTask
from trainer_backend.tasks.vision.segmentation import Segmentation

SMALL: dict[str, Any] = {
    "architecture": "unet",
    "encoder": "resnet18",
    "classes": 3,
    "tile_size": 32,
    "batch_norm": "group-norm",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recipe's folder with images and masks."""
    write_scenes(tmp_path)
    return tmp_path


def make(
    folder: Path, *, warned: list[Any] | None = None, data: dict[str, Any] | None = None, **task: Any
) -> Segmentation:
    """The task as a recipe asks for it."""
    say = [] if warned is None else warned
    return Segmentation(
        SegmentationTask(**(SMALL | task)),
        SegmentationData(**({"images": "images", "masks": "masks"} | (data or {}))),
        folder=folder,
        accumulation_steps=4,
        warn=lambda code, values: say.append((code, values)),
    )


def term_gradients(task: Segmentation, model: torch.nn.Module, parts: list[list[Any]]) -> torch.Tensor:
    """Gradient of the sum over terms of (sum of totals / sum of weights), fp64."""
    weights: dict[str, float] = {}
    batches = [task.collate(part) for part in parts]
    for batch in batches:
        for name, weight in task.weights(batch).items():
            weights[name] = weights.get(name, 0.0) + weight
    model.zero_grad()
    for batch in batches:
        exact = {
            name: value.double() if value.is_floating_point() else value for name, value in batch.items()
        }
        torch.stack([term.total / weights[term.name] for term in task.loss(model, exact)]).sum().backward()  # type: ignore[no-untyped-call]
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


@pytest.mark.parametrize(
    "options", [{}, {"dice": 0.0, "class_weights": (1.0, 2.0, 0.5)}, {"cross_entropy": 0.0}]
)
def test_micro_batches_add_up_to_the_gradient_of_the_large_batch(
    folder: Path, options: dict[str, Any]
) -> None:
    """Cross-entropy over pixels and Dice over images, ragged tiles and ignored pixels included."""
    with Image.open(folder / "masks" / "scene-0.png") as opened:
        mask = np.array(opened)
    mask[:50] = 255
    Image.fromarray(mask).save(folder / "masks" / "scene-0.png")
    task = make(folder, flip=False, ignore_value=255, **options)
    torch.manual_seed(0)
    model = task.model().double()
    train = task.datasets().train
    items = [train[index] for index in (0, 1, 10, 20, 30)]
    whole = term_gradients(task, model, [items])
    parts = term_gradients(task, model, [items[:1], items[1:3], items[3:]])
    assert (whole - parts).norm() <= 1e-12 * whole.norm()


def test_dice_over_a_micro_batch_depends_on_its_size_as_it_says(folder: Path) -> None:
    """The stated per-micro-batch definition is not the large batch's."""
    task = make(folder, flip=False, dice_over="micro-batch", cross_entropy=0.0)
    torch.manual_seed(0)
    model = task.model().double()
    train = task.datasets().train
    items = [train[index] for index in (0, 10, 20, 30)]
    whole = term_gradients(task, model, [items])
    parts = term_gradients(task, model, [items[:1], items[1:]])
    assert (whole - parts).norm() > 1e-3 * whole.norm()


@pytest.mark.parametrize("dice_over", ["image", "micro-batch"])
@pytest.mark.parametrize("class_weights", [(), (1.0, 3.0, 0.25)])
@pytest.mark.parametrize("ignore_value", [255, 0])
def test_both_losses_are_their_definitions_pixel_by_pixel(
    folder: Path, ignore_value: int, class_weights: tuple[float, ...], dice_over: str
) -> None:
    """Sums, weights and gradients, with ignored pixels and an image that has no other."""
    task = make(folder, ignore_value=ignore_value, class_weights=class_weights, dice_over=dice_over, dice=0.5)
    torch.manual_seed(0)
    logits_bkhw = torch.randn(3, 3, 4, 5, dtype=torch.float64, requires_grad=True)
    masks_bhw = torch.randint(0, 3, (3, 4, 5))
    masks_bhw[0, 1:3] = ignore_value
    masks_bhw[2] = ignore_value

    entropy, pixels = torch.zeros((), dtype=torch.float64), 0.0
    dice = torch.zeros((), dtype=torch.float64)
    kept = masks_bhw != ignore_value
    found_kn = logits_bkhw.softmax(1).movedim(1, 0)
    for place in kept.nonzero().tolist():
        number = int(masks_bhw[tuple(place)])
        weight = class_weights[number] if class_weights else 1.0
        entropy = entropy - weight * found_kn[(number, *place)].log()
        pixels += weight
    images = [image for image in range(3) if kept[image].any()]
    for group in [[image] for image in images] if dice_over == "image" else [images]:
        for number in range(3):
            truth, found = [
                torch.cat([of[image][kept[image]] for image in group])
                for of in (masks_bhw == number, found_kn[number])
            ]
            share = (2 * found[truth].sum() + 1) / (found.sum() + truth.sum() + 1)
            dice = dice + (1 - share) / 3 * (1 if dice_over == "image" else len(images))

    terms = task.loss(torch.nn.Identity(), {"images": logits_bkhw, "masks": masks_bhw})
    wanted = {"cross-entropy": (entropy, pixels), "dice": (0.5 * dice, float(len(images)))}
    assert [term.name for term in terms] == list(wanted)
    for term in terms:
        total, weight = wanted[term.name]
        assert float(term.weight) == pytest.approx(weight, rel=1e-12)
        assert float(term.total.detach()) == pytest.approx(float(total.detach()), rel=1e-12)
        (gradient,) = torch.autograd.grad(term.total, logits_bkhw, retain_graph=True)
        (definition,) = torch.autograd.grad(total, logits_bkhw, retain_graph=True)
        assert (gradient - definition).norm() <= 1e-12 * definition.norm()


def test_declared_weights_are_those_of_the_loss(folder: Path) -> None:
    """The host's count before the forward equals the terms' own."""
    task = make(folder, class_weights=(1.0, 3.0, 0.25))
    train = task.datasets().train
    batch = task.collate([train[0], train[5]])
    terms = {term.name: float(term.weight) for term in task.loss(task.model(), batch)}
    assert terms == pytest.approx(task.weights(batch), rel=1e-12)


@pytest.mark.parametrize("architecture", ["fpn", "torchvision-fcn"])
def test_other_networks_give_a_class_for_every_pixel(folder: Path, architecture: str) -> None:
    """Logits have the images' size."""
    encoder = "resnet50" if architecture.startswith("torchvision") else "resnet18"
    task = make(folder, architecture=architecture, encoder=encoder, batch_norm="freeze")
    train = task.datasets().train
    metrics = task.evaluate(task.model().eval(), task.collate([train[0]]))
    shares = {
        name: float(term.total.detach()) / max(1.0, float(term.weight)) for name, term in metrics.items()
    }
    assert 0 <= task.summarize(shares)["mean_iou"] <= 1


def test_flips_move_image_and_mask_together(folder: Path) -> None:
    """Bright pixels stay under the disc's mask."""
    train = make(folder, tile_size=0).datasets().train
    for seed in range(4):
        torch.manual_seed(seed)
        image, mask = train[0]
        assert float(image[0][mask == 1].mean()) > float(image[0][mask == 0].mean())


def test_sixteen_bit_images_keep_their_range(tmp_path: Path) -> None:
    """A 16-bit TIFF spans 0 to 1."""
    write_scenes(tmp_path, bits=16)
    image, _ = make(tmp_path, tile_size=0, flip=False).datasets().train[0]
    assert image.shape[0] == 3
    assert 0.5 < float(image.max()) <= 1.0
    assert len(torch.unique(image)) > 1000


def test_whole_images_of_any_size_are_padded_without_a_loss(folder: Path) -> None:
    """Sizes that are no multiple of 32."""
    Image.fromarray(np.zeros((50, 70, 3), np.uint8)).save(folder / "images" / "odd.png")
    Image.fromarray(np.zeros((50, 70), np.uint8)).save(folder / "masks" / "odd.png")
    task = make(folder, tile_size=0)
    batch = task.collate([(torch.zeros(3, 50, 70), torch.zeros(50, 70, dtype=torch.long))])
    assert batch["images"].shape == (1, 3, 64, 96)
    assert task.weights(batch)["cross-entropy"] == 50 * 70


def test_the_held_out_images_share_no_tile_with_the_rest(folder: Path) -> None:
    """Split by image."""
    data = make(folder).datasets()
    parts: list[Any] = [data.train, data.validation]
    names = [{part.name(index) for index in range(len(part))} for part in parts]
    assert not names[0] & names[1]
    assert len(names[0] | names[1]) == 6


def test_overlays_are_pictures_of_image_truth_and_prediction(folder: Path, tmp_path: Path) -> None:
    """Three times the width, one file an image."""
    task = make(folder, overlays=2)
    made = task.artifacts(task.model().eval(), tmp_path / "artifacts")
    assert [kind for kind, _, _ in made] == ["image", "image"]
    with Image.open(made[0][1]) as picture:
        assert picture.size == (96, 32)


def _wrong_size(folder: Path) -> None:
    Image.fromarray(np.zeros((10, 10), np.uint8)).save(folder / "masks" / "scene-1.png")


def _unknown_class(folder: Path) -> None:
    Image.fromarray(np.full((96, 96), 7, np.uint8)).save(folder / "masks" / "scene-1.png")


def _colour_mask(folder: Path) -> None:
    colours = np.zeros((96, 96, 3), np.uint8)
    colours[..., 0] = 255
    Image.fromarray(colours).save(folder / "masks" / "scene-1.png")


def _broken_image(folder: Path) -> None:
    (folder / "images" / "scene-1.png").write_bytes(b"\x89PNG\r\n\x1a\nbroken")


def _cut_image(folder: Path) -> None:
    path = folder / "images" / "scene-1.png"
    path.write_bytes(path.read_bytes()[:3000])


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (_wrong_size, "10 x 10 pixels, but its image is 96 x 96"),
        (_unknown_class, "has the value 7, but task.classes = 3 means 0 to 2"),
        (_colour_mask, "has 3 channels that differ"),
        (_broken_image, "cannot be read as a picture"),
        (_cut_image, "cannot be read as a picture"),
    ],
)
def test_a_file_that_does_not_fit_is_named(folder: Path, harm: Any, words: str) -> None:
    """And can be skipped, counted."""
    harm(folder)
    with pytest.raises(UsageError) as caught:
        make(folder).datasets()
    assert words in str(caught.value)
    assert "scene-1" in str(caught.value)
    warned: list[Any] = []
    make(folder, warned=warned, data={"broken": "skip"}).datasets()
    assert warned == [("images-skipped", {"count": 1})]


@pytest.mark.parametrize(
    ("data", "task", "words"),
    [
        ({"images": "none"}, {}, "is not a folder"),
        ({}, {"encoder": "resnet19"}, "resnet19"),
        ({}, {"cross_entropy": 0.0, "dice": 0.0}, "are all 0"),
        ({}, {"class_weights": (1.0,)}, "1 values for 3 classes"),
    ],
)
def test_what_does_not_fit_together_is_a_sentence(
    folder: Path, data: dict[str, str], task: dict[str, Any], words: str
) -> None:
    """Folders, networks, weights."""

    def build() -> None:
        made = make(folder, data=data, **task)
        made.datasets()
        made.model()

    with pytest.raises(UsageError) as caught:
        build()
    assert words in str(caught.value)


def test_a_mask_that_is_missing_is_named(folder: Path) -> None:
    """By the image it belongs to."""
    (folder / "masks" / "scene-2.png").unlink()
    with pytest.raises(UsageError, match="has no mask named scene-2"):
        make(folder).datasets()


def test_paths_may_start_at_the_home_folder(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`~` is expanded in every path, wherever the recipe lies."""
    monkeypatch.setenv("HOME", str(folder))
    monkeypatch.setenv("USERPROFILE", str(folder))
    data = {"images": "~/images", "masks": "~/masks", "validation_images": "~/images"}
    task = make(tmp_path_factory.mktemp("elsewhere"), data=data)
    assert len(task.datasets().train) == len(
        make(folder, data={"validation_images": "images"}).datasets().train
    )
    with pytest.raises(UsageError, match="~nobody-of-that-name"):
        make(folder, data={"images": "~nobody-of-that-name/images"}).datasets()


def test_a_fraction_of_nothing_is_no_validation(tmp_path: Path) -> None:
    """Every image is trained on."""
    write_scenes(tmp_path, count=2)
    warned: list[Any] = []
    found = make(tmp_path, data={"validation_fraction": 0}, warned=warned).datasets()
    assert (len(found.train), found.validation, warned) == (18, None, [])


def test_one_image_trains_and_nothing_is_held_out(tmp_path: Path) -> None:
    """And that is said; no image at all is refused."""
    write_scenes(tmp_path, count=1)
    warned: list[Any] = []
    found = make(tmp_path, warned=warned).datasets()
    assert (len(found.train), found.validation) == (9, None)
    assert warned == [("no-validation-data", {"samples": 1})]
    (tmp_path / "images" / "scene-0.png").unlink()
    with pytest.raises(UsageError, match="holds no"):
        make(tmp_path).datasets()


def test_a_library_that_is_missing_is_a_sentence_with_the_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kind needs segmentation-models-pytorch."""
    monkeypatch.setitem(sys.modules, "segmentation_models_pytorch", None)
    with pytest.raises(
        UsageError,
        match=re.escape("Run: pip install imagecodecs pillow segmentation-models-pytorch"),
    ):
        make(folder).model()


@pytest.mark.parametrize("architecture", ["unet", "torchvision-fcn"])
def test_the_export_is_a_network_that_its_library_loads(folder: Path, architecture: str) -> None:
    """Same answers; classes and sizes stand beside it."""
    import segmentation_models_pytorch as smp
    from safetensors.torch import load_file

    encoder = "resnet18" if architecture == "unet" else "resnet50"
    task = make(folder, architecture=architecture, encoder=encoder, batch_norm="keep")
    task.datasets()
    model: Any = task.model().eval()
    (saved,) = task.export(model, folder / "export")
    described = json.loads((saved / "input.json").read_text("utf-8"))
    assert (list(described["classes"]), described["tile_size"]) == (["0", "1", "2"], 32)
    if architecture == "unet":
        again = smp.from_pretrained(saved).eval()
        image = torch.randn(1, 3, 32, 32)
        assert torch.equal(again(image), model(image))
    else:
        weights = load_file(saved / "model.safetensors")
        assert all(torch.equal(weights[name], value) for name, value in model.state_dict().items())
