"""A run's newest checkpoint is asked, and hands its weights over."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.test_kinds import LIGHT, language_files, language_recipe, trained
from tests.support.scenes import write_digits, write_scenes
from tests.support.trainers import make_run
from trainer_backend.run_directory import RunDirectory, checkpoints_in
from trainer_backend.trying.opened_run import open_run
from trainer_backend.trying.try_command import main
from trainer_backend.trying.try_messages import (
    Answered,
    AnswerPart,
    AnyTryMessage,
    HandedOver,
    HandOver,
    Look,
    Opened,
    PictureClasses,
    Prompt,
    TryRefused,
    Written,
    decode_try,
    encode_try,
)

pytestmark = pytest.mark.filterwarnings("ignore:.*is_activation_checkpointing.*:FutureWarning")
ROSE = "what colour is a rose"


def asked(run: RunDirectory, *questions: Prompt | Look | HandOver) -> list[AnyTryMessage]:
    """What `try --stream` answers to lines on its input."""
    lines = b"".join(encode_try(question) + b"\n" for question in questions)
    out, before, stdin = io.StringIO(), sys.stdout, sys.stdin
    sys.stdout, sys.stdin = out, io.TextIOWrapper(io.BytesIO(lines))
    try:
        main([str(run.path), "--stream"])
    finally:
        sys.stdout, sys.stdin = before, stdin
    return [decode_try(line.encode()) for line in out.getvalue().splitlines()]


def of(kind: type[Any], messages: list[AnyTryMessage]) -> list[Any]:
    """Messages of one class."""
    return [message for message in messages if isinstance(message, kind)]


@pytest.fixture(scope="module")
def lora(tmp_path_factory: pytest.TempPathFactory) -> RunDirectory:
    """A run that trained adapters on five answers."""
    folder = language_files(tmp_path_factory.mktemp("lora"))
    more: dict[str, Any] = {
        "run": {"max_optimizer_steps": 40},
        "task": {
            "lora_rank": 32, "modules_to_save": ["lm_head"], "generate": [ROSE], "generate_tokens": 12,
        },
        "accumulation": {"micro_batch_size": 10, "gradient_accumulation_steps": 1},
        "evaluation": {"every_samples": 400},
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADACC_HOME", str(folder / "home"))
        return trained(folder, language_recipe("lora", **more))


def test_the_run_and_its_base_answer_side_by_side_as_the_data_are_posed(lora: RunDirectory) -> None:
    """They differ, and the run's is the sample of its last evaluation; words come while they are written."""
    found = asked(lora, Prompt(text=ROSE, as_chat=True, most_tokens=12))
    (opened,) = of(Opened, found)
    assert (opened.step, opened.takes, opened.has_template, opened.has_base) == (40, "prompt", True, True)
    run, base = of(Written, found)
    assert (run.who, base.who) == ("run", "base")
    assert base.text != run.text
    assert base.tokens <= 12
    last = max((lora.path / "artifacts").rglob("samples.txt"))
    assert last.read_text("utf-8") == f"{ROSE}\n\n{run.text}"
    pieces = "".join(piece.text for piece in of(AnswerPart, found) if piece.who == "run")
    assert pieces == run.text
    assert isinstance(found[-1], Answered)


def test_each_question_is_answered_or_refused_and_the_next_one_still_comes(lora: RunDirectory) -> None:
    """An empty prompt, one that is too long, a picture, and then a good one without the base."""
    found = asked(
        lora,
        Prompt(text=""),
        Prompt(text="rose " * 400),
        Look(path="a.png"),
        Prompt(text=ROSE, as_chat=True, most_tokens=3, temperature=0.7, with_base=False),
    )
    sentences = [message.message for message in of(TryRefused, found)]
    assert "is empty" in sentences[0]
    assert "the model takes 256" in sentences[1]
    assert "takes no picture, but a prompt" in sentences[2]
    (run,) = of(Written, found)
    assert not run.ended
    assert run.tokens == 3
    assert len(of(Answered, found)) == 4


def test_weights_are_handed_over_with_the_command_for_gguf(lora: RunDirectory, tmp_path: Path) -> None:
    """Merged weights compute what base and adapter do; nothing is written over."""
    import transformers

    merged, adapter = tmp_path / "my model", tmp_path / "adapter"
    found = asked(
        lora,
        HandOver(what="merged", folder=str(merged)),
        HandOver(what="adapter", folder=str(adapter)),
        HandOver(what="adapter", folder=str(adapter)),
        HandOver(what="model", folder=str(tmp_path / "other")),
    )
    first, second = of(HandedOver, found)
    assert min(first.size_bytes, second.size_bytes) > 50_000
    assert first.commands[-1].startswith("python llama.cpp/convert_hf_to_gguf.py ")
    assert "my model" in first.commands[-1]
    assert "convert_lora_to_gguf.py" in second.commands[-1]
    assert str(lora.recipe().folder / "model") in second.commands[-1]
    sentences = [message.message for message in of(TryRefused, found)]
    assert "is there already and not empty" in sentences[0]
    assert "it offers merged and adapter" in sentences[1]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "my model"]
    opened = open_run(lora)
    plain = transformers.AutoModelForCausalLM.from_pretrained(merged).eval()
    tokens_bs = torch.arange(1, 9)[None]
    with torch.no_grad():
        apart = (plain(tokens_bs).logits - opened.model(tokens_bs).logits).abs().max()
    assert apart < 1e-4


def test_a_fully_trained_model_is_held_against_the_one_it_came_from(tmp_path: Path) -> None:
    """The base is loaded again; averaged weights are the ones that answer."""
    files = language_files(tmp_path)
    run = trained(files, language_recipe("full", optimizer={"ema_decay": 0.5}))
    found = asked(run, Prompt(text=ROSE, as_chat=True, most_tokens=12))
    assert of(Opened, found)[0].is_average
    assert of(Opened, found)[0].exports == ("model",)
    ours, base = of(Written, found)
    assert ours.text == "a rose is red"
    assert ours.ended
    assert base.text != ours.text
    (files / "model" / "config.json").unlink()
    with pytest.raises(SystemExit):
        main([str(run.path)])
    assert main([str(run.path), "--prompt", "x"]) == 2


def test_a_run_without_a_checkpoint_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By its id, with when there will be one."""
    run = make_run(language_files(tmp_path), language_recipe("full"))
    assert main([str(run.path), "--prompt", "x"]) == 2
    assert f"{run.id} has no checkpoint yet" in capsys.readouterr().out


def test_a_classifier_says_what_a_picture_shows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Shares of all classes; no data but the list of files is read; a text that is no picture is refused."""
    write_digits(tmp_path / "digits", 12)
    recipe: dict[str, Any] = {
        "run": {"max_optimizer_steps": 4},
        "task": {"kind": "image-classification", "model": "test_resnet", "image_size": 32, "channels": 3},
        "data": {"path": "digits"},
        "accumulation": {"micro_batch_size": 4, "gradient_accumulation_steps": 2},
    }
    run = trained(tmp_path, recipe)
    (tmp_path / "no.png").write_text("text", encoding="utf-8")
    picture = next((tmp_path / "digits").rglob("*.png"))
    found = asked(run, Look(path=str(picture)), Look(path=str(tmp_path / "no.png")), Prompt(text="a"))
    (seen,) = of(PictureClasses, found)
    assert abs(sum(share for _, share in seen.shares) - 1) < 1e-5
    assert len(seen.shares) == 10
    sentences = [message.message for message in of(TryRefused, found)]
    assert "no.png" in sentences[0]
    assert "takes no prompt, but a picture" in sentences[1]
    capsys.readouterr()
    assert main([str(run.path), "--export", "model", "--output", str(tmp_path / "net")]) == 0
    assert "MB" in capsys.readouterr().out
    classes = json.loads((tmp_path / "net" / "input.json").read_text("utf-8"))["classes"]
    assert len(classes) == 10


def test_a_segmentation_lays_its_classes_over_the_picture(tmp_path: Path) -> None:
    """A file with both, side by side, and the share of each class."""
    from PIL import Image

    write_scenes(tmp_path, count=4, side=64)
    recipe: dict[str, Any] = {
        "run": {"max_optimizer_steps": 2},
        "task": LIGHT | {"tile_size": 64},
        "data": {"images": "images", "masks": "masks"},
        "accumulation": {"micro_batch_size": 2, "gradient_accumulation_steps": 1},
    }
    run = trained(tmp_path, recipe)
    opened = open_run(run)
    shares, picture = opened.task.recognise(opened.model, tmp_path / "images" / "scene-0.png", tmp_path)
    assert abs(sum(share for _, share in shares) - 1) < 1e-6
    assert picture is not None
    with Image.open(picture) as image:
        assert image.size == (128, 64)


def test_bytes_are_continued_by_the_small_language_model(tmp_path: Path) -> None:
    """Beyond its context; there is no base."""
    (tmp_path / "text.txt").write_text("abcabcabc" * 400, encoding="utf-8")
    recipe: dict[str, Any] = {
        "run": {"max_optimizer_steps": 150},
        "task": {
            "kind": "language-model", "context_length": 16, "width": 16, "layers": 1, "heads": 2,
        },
        "data": {"path": "text.txt"},
        "accumulation": {"micro_batch_size": 8, "gradient_accumulation_steps": 1},
        "optimizer": {"learning_rate": 1e-2},
    }  # fmt: skip
    run = trained(tmp_path, recipe)
    found = asked(run, Prompt(text="abcab", most_tokens=40))
    (written,) = of(Written, found)
    assert written.text.startswith("cabcabc")
    assert written.tokens == 40
    assert not of(Opened, found)[0].has_base


def test_a_damaged_checkpoint_is_a_sentence(lora: RunDirectory) -> None:
    """And the file is named."""
    path = next(reversed(checkpoints_in(lora.checkpoints_path).values())) / "model.safetensors"
    content = path.read_bytes()
    try:
        path.write_bytes(content[:-1])
        (refused,) = of(TryRefused, asked(lora, Prompt(text="a")))
        assert "model.safetensors" in refused.message
    finally:
        path.write_bytes(content)
