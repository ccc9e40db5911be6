"""Masks: what a value or colour means is settled over all of them, before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
import torch
from PIL import Image

from trainer_backend.errors import UsageError
from trainer_backend.kinds.segmentation import SegmentationData, SegmentationTask
from trainer_backend.tasks.vision.masks import MaskRules, parse_colours, parse_values, read_mask
from trainer_backend.tasks.vision.segmentation import Segmentation

DOOR = Path(__file__).parents[3] / "data" / "door"
Said = list[tuple[str, dict[str, Any]]]


def make(
    folder: Path, said: Said | None = None, data: dict[str, Any] | None = None, **task: Any
) -> Segmentation:
    """A task over `folder`'s images and masks."""
    heard = [] if said is None else said
    given: dict[str, Any] = {
        "tile_size": 0,
        "batch_norm": "group-norm",
        "flip": False,
        "encoder": "resnet18",
    } | task
    fields: dict[str, Any] = {"images": "images", "masks": "masks", "validation_fraction": 0} | (data or {})
    return Segmentation(
        SegmentationTask(**given),
        SegmentationData(**fields),
        folder=folder,
        warn=lambda code, values: heard.append((code, values)),
    )


def write(folder: Path, *masks: Any, suffix: str = ".png") -> Path:
    """A picture for each mask, of its size."""
    for name in ("images", "masks"):
        (folder / name).mkdir()
    for number, mask in enumerate(masks):
        array = np.asarray(mask, np.uint8)
        Image.fromarray(array).save(folder / "masks" / f"{number}{suffix}")
        Image.new("RGB", (array.shape[1], array.shape[0])).save(folder / "images" / f"{number}.png")
    return folder


def halves(low: int, high: int, side: int = 32) -> Any:
    """A mask of two values, a quarter of it `high`."""
    mask = np.full((side, side), low, np.uint8)
    mask[: side // 2, : side // 2] = high
    return mask


@pytest.mark.parametrize("value", [255, 200])
@pytest.mark.parametrize("channels", [1, 3])
def test_a_foreground_of_255_is_never_ignored_in_silence(tmp_path: Path, value: int, channels: int) -> None:
    """It is refused with the line that maps it; with that line a quarter of the pixels is class 1."""
    mask = halves(0, value)
    write(tmp_path, mask if channels == 1 else np.repeat(mask[..., None], 3, -1))
    with pytest.raises(UsageError) as caught:
        make(tmp_path).datasets()
    assert f"data.mask_values = {{ {value} = 1 }}" in str(caught.value)
    assert "25.0%" in str(caught.value)
    task = make(tmp_path, data={"mask_values": {str(value): 1}})
    _, mask_hw = task.datasets().train[0]
    assert float((mask_hw == 1).double().mean()) == 0.25
    assert task.survey.shares() == {0: 0.75, 1: 0.25}


def test_the_same_mask_in_colour_holds_the_same_values() -> None:
    """Three equal channels are one."""
    rules = MaskRules(classes=2, values={255: 1})
    grey, colour = (read_mask(DOOR / name, rules) for name in ("mask.png", "mask_rgb.png"))
    assert torch.equal(grey, colour)
    assert float(grey.double().mean()) == 0.25


def test_thin_lines_of_255_between_classes_have_no_loss(tmp_path: Path) -> None:
    """As in Pascal VOC; said with their share. A value that covers more is a question."""
    mask = halves(0, 1)
    mask[15, :16] = mask[:16, 15] = 255
    said: Said = []
    task = make(write(tmp_path, mask), said)
    _, mask_hw = task.datasets().train[0]
    assert [code for code, _ in said] == ["mask-borders-ignored"]
    assert int((mask_hw == task.ignored).sum()) == 31
    weights = task.weights({"masks": mask_hw[None]})
    assert weights["cross-entropy"] == 32 * 32 - 31


def test_much_that_is_ignored_is_said(tmp_path: Path) -> None:
    """A stated value is ignored whatever it covers."""
    mask = halves(0, 1)
    mask[16:] = 255
    said: Said = []
    make(write(tmp_path, mask), said, ignore_value=255).datasets()
    assert said == [("mask-much-ignored", {"value": 255, "percent": 50.0})]


def test_colours_are_mapped_and_an_unknown_one_is_named(tmp_path: Path) -> None:
    """Never guessed."""
    mask = np.zeros((8, 8, 3), np.uint8)
    mask[:4, :4] = (255, 0, 0)
    mask[4:, 4:] = (0, 0, 255)
    write(tmp_path, mask)
    with pytest.raises(UsageError, match=r"channels that differ.*data\.mask_colours"):
        make(tmp_path, classes=3).datasets()
    colours = {"#000000": 0, "#ff0000": 1}
    with pytest.raises(UsageError, match="does not name: #0000ff"):
        make(tmp_path, classes=3, data={"mask_colours": colours}).datasets()
    task = make(tmp_path, classes=3, data={"mask_colours": colours | {"#0000FF": 2}})
    task.datasets()
    assert task.survey.shares() == {0: 0.5, 1: 0.25, 2: 0.25}


def test_a_palettes_numbers_are_classes_and_its_colours_can_be(tmp_path: Path) -> None:
    """Indices by default; by colour where colours are mapped."""
    image = Image.new("P", (32, 32))
    image.putdata(halves(0, 1).flatten().tolist())
    image.putpalette([10, 20, 30, 255, 0, 0])
    image.save(tmp_path / "a.png")
    by_index = read_mask(tmp_path / "a.png", MaskRules(classes=2))
    by_colour = read_mask(
        tmp_path / "a.png", MaskRules(classes=2, colours=parse_colours({"#0a141e": 0, "#ff0000": 1}))
    )
    assert torch.equal(by_index, by_colour)
    assert float(by_index.double().mean()) == 0.25


def test_a_class_that_no_mask_has_stops_the_run_unless_allowed(tmp_path: Path) -> None:
    """One class only is the same fault."""
    write(tmp_path, halves(0, 1))
    with pytest.raises(UsageError, match=r"No mask has class 2.*allow_missing_classes"):
        make(tmp_path, classes=3).datasets()
    said: Said = []
    make(tmp_path, said, classes=3, data={"allow_missing_classes": True}).datasets()
    assert said == [("mask-classes-missing", {"classes": "2", "count": 1})]


def test_values_of_a_scaled_mask_are_recognised(tmp_path: Path) -> None:
    """Many odd values come from resampling or JPEG."""
    write(tmp_path, np.arange(1024, dtype=np.uint16).reshape(32, 32) % 256)
    with pytest.raises(UsageError, match="resampling"):
        make(tmp_path).datasets()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"mask_values": {"x": 1}}, 'data.mask_values has "x"'),
        ({"mask_colours": {"red": 1}}, 'data.mask_colours has "red"'),
        ({"value_range": (5.0, 5.0)}, "must be above"),
    ],
)
def test_a_mapping_that_is_none_is_a_sentence(tmp_path: Path, data: dict[str, Any], words: str) -> None:
    """Before any file is read."""
    with pytest.raises(UsageError) as caught:
        make(tmp_path, data=data)
    assert words in str(caught.value)
    assert parse_values({"7": 1}) == {7: 1}


def test_masks_are_found_by_their_pattern(tmp_path: Path) -> None:
    """In a folder of their own or beside the pictures; two pictures of one stem share none."""
    folder = tmp_path / "images"
    folder.mkdir()
    for name in ("a", "b"):
        Image.new("RGB", (8, 8)).save(folder / f"{name}.png")
        Image.fromarray(halves(0, 1, 8)).save(folder / f"{name}_mask.png")
    data = {"masks": "images", "mask_pattern": "{name}_mask"}
    assert len(make(tmp_path, data=data).datasets().train) == 2
    Image.new("RGB", (8, 8)).save(folder / "a.jpg")
    with pytest.raises(UsageError, match=r"a\.jpg and a\.png would share the mask a_mask\.png"):
        make(tmp_path, data=data).datasets()
    (folder / "b_mask.png").unlink()
    (folder / "a.jpg").unlink()
    with pytest.raises(UsageError, match="has no mask named b_mask"):
        make(tmp_path, data=data).datasets()


def test_a_pair_of_which_one_is_turned_is_said(tmp_path: Path) -> None:
    """Sizes must fit after turning; only one of both with a tag is said."""
    write(tmp_path, halves(0, 1, 16))
    exif = Image.Exif()
    exif[274] = 3
    Image.new("RGB", (16, 16)).save(tmp_path / "images" / "0.png", exif=exif)
    said: Said = []
    make(tmp_path, said).datasets()
    assert said == [("picture-turned-alone", {"count": 1, "first": "0.png"})]


def test_pixels_that_were_not_measured_have_no_loss(tmp_path: Path) -> None:
    """`nodata` of the picture is ignored in the mask."""
    write(tmp_path, halves(0, 1, 16))
    (tmp_path / "images" / "0.png").unlink()
    values = np.ones((16, 16, 3), np.float32)
    values[0] = -9999
    tifffile.imwrite(tmp_path / "images" / "0.tif", values, photometric="rgb")
    task = make(tmp_path, data={"nodata": -9999.0, "value_range": (0.0, 2.0)})
    image_chw, mask_hw = task.datasets().train[0]
    assert bool((mask_hw[0] == task.ignored).all())
    assert not bool((mask_hw[1:] == task.ignored).any())
    assert image_chw[:, 0].unique().tolist() == [0.0]
    assert image_chw[:, 1:].unique().tolist() == [0.5]


def test_large_tiffs_are_read_tile_by_tile_with_the_same_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows of both files are the parts of the whole ones."""
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    random = np.random.default_rng(0)
    tifffile.imwrite(
        tmp_path / "images" / "a.tif", random.integers(0, 255, (100, 90, 3), np.uint8), photometric="rgb"
    )
    mask = random.integers(0, 2, (100, 90), np.uint8)
    tifffile.imwrite(tmp_path / "masks" / "a.tif", mask, tile=(16, 16), compression="zlib")
    whole = make(tmp_path, tile_size=32).datasets().train
    monkeypatch.setattr("trainer_backend.tasks.vision.scenes.WHOLE_PIXELS", 100)
    tiled = make(tmp_path, tile_size=32).datasets().train
    assert len(whole) == len(tiled) == 12
    for number in range(len(whole)):
        assert all(map(torch.equal, whole[number], tiled[number]))


def test_tiles_are_drawn_from_the_foreground_as_often_as_asked(tmp_path: Path) -> None:
    """One tile of sixteen has any; at 1 every tile drawn has."""
    mask = np.zeros((128, 128), np.uint8)
    mask[:8, :8] = 1
    write(tmp_path, mask)
    plain = make(tmp_path, tile_size=32).datasets().train
    assert sum(bool(plain[number][1].any()) for number in range(16)) == 1
    biased = make(tmp_path, tile_size=32, foreground=1.0).datasets().train
    assert biased.uses_randomness
    assert all(bool(biased[number][1].any()) for number in range(16))


def test_focal_loss_is_its_definition_pixel_by_pixel(tmp_path: Path) -> None:
    """Lin et al. 2017, with class weights and ignored pixels; gamma 0 is cross-entropy."""
    task = make(
        write(tmp_path, halves(0, 1)),
        ignore_value=255,
        focal=0.5,
        cross_entropy=0.0,
        dice=0.0,
        class_weights=(1.0, 3.0),
    )
    torch.manual_seed(0)
    logits_bkhw = torch.randn(2, 2, 4, 5, dtype=torch.float64)
    masks_bhw = torch.randint(0, 2, (2, 4, 5))
    masks_bhw[0, 1] = 255
    right, weight = 0.0, 0.0
    chances_bkhw = logits_bkhw.softmax(1)
    for b, h, w in (masks_bhw != 255).nonzero().tolist():
        number = int(masks_bhw[b, h, w])
        chance = chances_bkhw[b, number, h, w]
        right -= float((1, 3)[number] * (1 - chance) ** 2 * chance.log())
        weight += (1, 3)[number]
    batch = {"images": torch.zeros(2, 3, 4, 5), "masks": masks_bhw}
    (term,) = task.loss(lambda _images: logits_bkhw, batch)  # type: ignore[arg-type]
    assert (term.name, float(term.weight)) == ("focal", weight)
    assert float(term.total) == pytest.approx(0.5 * right, rel=1e-12)
    assert task.weights(batch) == {"focal": weight}
