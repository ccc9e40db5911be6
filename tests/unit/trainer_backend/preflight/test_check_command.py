"""`preview RECIPE --json` over every case of tests/data/door: what goes in is what is said to go in."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tifffile
from PIL import Image

from tests.support.door import DOOR, cases, write_door_model
from trainer_backend.preflight.check_command import main

TEXT_CASES = [case for case in cases() if case["id"][0] in "TF"]
PICTURE_CASES = [case for case in cases() if case["id"][0] == "V" and "classes" not in case["recipe"]]
MASK_CASES = [case for case in cases() if case["id"][0] == "V" and "classes" in case["recipe"]]

TEXT = """
[run]
device = "cpu"
epochs = 1
[task]
kind = "causal-lm"
model = "{model}"
method = "full"
{task}
[data]
path = "{path}"
validation_fraction = 0.0
shuffle = false
{data}
[accumulation]
micro_batch_size = 8
gradient_accumulation_steps = 64
"""
PICTURES = """
[run]
device = "cpu"
epochs = 1
[task]
kind = "segmentation"
encoder = "resnet18"
batch_norm = "group-norm"
tile_size = 0
flip = false
{task}
[data]
images = "images"
masks = "masks"
validation_fraction = 0.0
shuffle = false
{data}
[accumulation]
micro_batch_size = 1
gradient_accumulation_steps = 1
"""


def checked(folder: Path, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], int]:
    """What the command prints, and its exit code."""
    recipe = folder / "recipe.toml"
    recipe.write_text(text, encoding="utf-8")
    code = main([str(recipe), "--json"])
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (told["refused"] is None) == (code == 0)
    assert code in (0, 2)
    return told, code


def lines(values: dict[str, Any]) -> str:
    """TOML lines of a table."""
    written = []
    for key, value in values.items():
        if isinstance(value, dict):
            inside = ", ".join(f"{name} = {json.dumps(entry)}" for name, entry in value.items())
            written.append(f"{key} = {{ {inside} }}")
        else:
            written.append(f"{key} = {json.dumps(value)}")
    return "\n".join(written)


def learnt(row: dict[str, Any]) -> list[str]:
    """Each run of tokens with a loss, as text."""
    found: list[str] = []
    before = 0.0
    for text, weight in zip(row["texts"], row["weights"], strict=True):
        if weight and not before:
            found.append("")
        if weight:
            found[-1] += text
        before = weight
    return found


def check_text(case: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """The object for a text case."""
    asked = dict(case["recipe"])
    model = write_door_model(folder, asked.pop("tokenizer"))
    task = {key: asked.pop(key) for key in ("max_length",) if key in asked}
    text = TEXT.format(model=model, path=DOOR / case["input"], task=lines(task), data=lines(asked))
    return checked(folder, text, capsys)[0]


@pytest.mark.parametrize("case", TEXT_CASES, ids=lambda case: str(case["id"]))
def test_text_goes_in_as_is_said(
    case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each key of what is right is held by the object that is printed."""
    found = check_text(case, tmp_path, capsys)
    right = dict(case["right"])
    refused = right.pop("refused", None)
    assert (found["refused"] is None) == (refused is None), found["refused"]
    assert all(word in found["refused"] for word in refused or ())
    for word in right.pop("said", []):
        assert any(word in sentence for sentence in found["said"]), found["said"]
    rows = found["window"]
    if refused is None:
        assert found["samples"] == len(rows)
        assert found["weight"] == sum(sum(row["weights"]) for row in rows) == found["denominators"]["loss"]
        assert all(row["source"].startswith(str(DOOR / case["input"])) for row in rows)
    if "learnt" in right:
        assert sorted(part for row in rows for part in learnt(row)) == sorted(right.pop("learnt"))
    assert found["samples"] == right.pop("samples", found["samples"])
    for word in right.pop("prompt_contains", []):
        assert any(word in "".join(row["texts"]) for row in rows)
    if "bos_count" in right:
        assert [row["texts"].count("<|bos|>") for row in rows] == [right.pop("bos_count")]
    if right.pop("prompt_ids_equal_generation_prompt", False):
        _holds_the_prompt_of_use(rows, case)
    if right.pop("rule", ""):
        assert found["samples"] == -(-sum(len(row["ids"]) for row in rows) // case["recipe"]["max_length"])
        _holds_every_token_once(rows, case)
    assert right == {}, "a key of expected.json is not held"


def tokenizer_of(case: dict[str, Any]) -> Any:
    """The tokenizer that a case names."""
    import transformers

    return transformers.AutoTokenizer.from_pretrained(DOOR / case["recipe"]["tokenizer"])


def _holds_the_prompt_of_use(rows: list[dict[str, Any]], case: dict[str, Any]) -> None:
    tokenizer = tokenizer_of(case)
    (row,) = rows
    (line,) = (DOOR / case["input"]).read_text("utf-8").splitlines()
    text = tokenizer.apply_chat_template(
        json.loads(line)["messages"][:-1], tokenize=False, add_generation_prompt=True
    )
    prompt = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert row["ids"][: len(prompt)] == prompt
    assert [bool(weight) for weight in row["weights"]] == [
        place >= len(prompt) for place in range(len(row["ids"]))
    ]


def _holds_every_token_once(rows: list[dict[str, Any]], case: dict[str, Any]) -> None:
    tokenizer = tokenizer_of(case)
    ids = [*tokenizer((DOOR / case["input"]).read_text("utf-8"))["input_ids"], tokenizer.eos_token_id]
    assert [number for row in rows for number in row["ids"]] == ids


# ------------------------------------------------------------------------------------ pictures


def check_picture(
    case: dict[str, Any],
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    data: dict[str, Any] | None = None,
    files: tuple[str, ...] = (),
) -> dict[str, Any]:
    """The object for a picture with an empty mask of its size."""
    for name in ("images", "masks"):
        (folder / name).mkdir()
    names = files or (case["input"],) if case["input"] != "." else ("a.png", "._a.png")
    for name in names:
        shutil.copy(DOOR / name, folder / "images" / name)
        if not name.startswith("."):
            Image.fromarray(np.zeros(size_of(DOOR / name), np.uint8)).save(
                folder / "masks" / Path(name).with_suffix(".png").name
            )
    given = {"allow_missing_classes": True} | (data or {})
    return checked(folder, PICTURES.format(task=lines(case["recipe"]), data=lines(given)), capsys)[0]


def size_of(path: Path) -> tuple[int, int]:
    """Height and width as a picture is seen."""
    if path.suffix == ".tif":
        array = tifffile.imread(path, key=0)
        return int(array.shape[0]), int(array.shape[1])
    with Image.open(path) as image:
        turned = image.getexif().get(274, 1) >= 5
        return (image.width, image.height) if turned else (image.height, image.width)


@pytest.mark.parametrize("case", PICTURE_CASES, ids=lambda case: str(case["id"]))
def test_pictures_go_in_as_is_said(
    case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Colours, orientation, scale; what cannot be is refused by the file's name."""
    right = dict(case["right"])
    if equal := right.pop("equal_between", None):
        _one_scale_for_all(case, equal, tmp_path, capsys)
        return
    found = check_picture(case, tmp_path, capsys)
    refused = right.pop("refused", None)
    assert (found["refused"] is None) == (refused is None), found["refused"]
    assert all(word in found["refused"] for word in refused or ())
    for word in right.pop("said", []):
        assert any(word in sentence for sentence in found["said"]), found["said"]
    rows = found["window"]
    if "mean" in right:
        assert rows[0]["mean"] == pytest.approx(right.pop("mean"), abs=1e-6)
    if "shape" in right:
        assert rows[0]["shape"] == right.pop("shape")
    if right.pop("white_half", None):
        assert rows[0]["mean"] == pytest.approx([0.5] * 3, abs=0.05)  # which half: test_pictures.py
    if "max_share_of_full_scale" in right:
        assert rows[0]["max"] == pytest.approx([right.pop("max_share_of_full_scale")])
    assert found["samples"] == right.pop("samples", found["samples"])
    assert right == {}, "a key of expected.json is not held"


def _one_scale_for_all(
    case: dict[str, Any], names: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "asked").mkdir()
    asked = check_picture(case, folder / "asked", capsys)
    assert "data.value_range" in asked["refused"]
    found = check_picture(case, folder, capsys, {"value_range": [0, 3000]}, tuple(names))
    for row, name in zip(found["window"], names[:1], strict=True):
        assert row["mean"] == pytest.approx([float(tifffile.imread(DOOR / name).mean()) / 3000])


@pytest.mark.parametrize("case", MASK_CASES, ids=lambda case: str(case["id"]))
def test_a_foreground_of_255_is_asked_about_and_then_mapped(
    case: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The object shows the shares either way, and the change that it offers is the one that is right."""
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    shutil.copy(DOOR / case["input"], tmp_path / "masks" / "a.png")
    height, width = size_of(DOOR / case["input"])
    Image.new("RGB", (width, height)).save(tmp_path / "images" / "a.png")
    text = PICTURES.format(task=lines(case["recipe"]), data="{}")
    found, code = checked(tmp_path, text.format(""), capsys)
    assert code == 2
    assert "data.mask_values = { 255 = 1 }" in found["refused"]
    assert found["window"][0]["mask_shares"] == {"0": 0.75, "255": 0.25}
    (check,) = [entry for entry in found["checks"] if entry["state"] == "stop"]
    assert check["change"] == {"data.mask_values": {"255": 1}}
    mapped, code = checked(tmp_path, text.format("mask_values = { 255 = 1 }"), capsys)
    assert code == 0
    assert mapped["window"][0]["mask_shares"] == {"0": 0.75, "1": 0.25}
    assert [(entry["value"], entry["share"]) for entry in mapped["classes"]] == [(0, 0.75), (1, 0.25)]
