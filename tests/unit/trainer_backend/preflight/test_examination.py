"""Each check of a recipe finds what it looks for, says what it costs, and offers what would mend it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.support.door import DOOR, write_door_model
from tests.support.scenes import write_digits, write_scenes
from trainer_backend.kept_checks import keep_check, keep_with_run
from trainer_backend.preflight.check_command import main, trimmed, without_rows
from trainer_backend.preflight.check_words import SENTENCES, TITLES, cost, sentence, title
from trainer_backend.preflight.examination import QUICK_RECORDS, Examination
from trainer_backend.preflight.findings import (
    AnyCheckMessage,
    CheckReport,
    Finding,
    FirstWindow,
    PictureRow,
    TensorRow,
    TokenRow,
    decode_check,
    encode_check,
)
from trainer_backend.recipe import load_recipe

CUSTOM = """
import torch
from trainer_backend.tasks import Datasets, LossTerm

class Data(torch.utils.data.Dataset):
    def __len__(self): return {length}
    def __getitem__(self, index):
        {read}
        return torch.randn(3), torch.tensor(float(index))

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.used = torch.nn.Linear(3, 1)
        {layers}
    def forward(self, x): return self.used(x)[:, 0]

class Task:
    def model(self):
        torch.manual_seed(0)
        return Model()
    def datasets(self): return Datasets(train=Data(){validation})
    def loss(self, model, batch):
        x, y = batch
        error = (model(x) - y).square()
        return LossTerm({total}, {weight})
    {more}
"""


def custom(folder: Path, tables: str = "", **parts: str) -> Path:
    """A recipe of the user's own code, with one part of it exchanged."""
    given = {"length": "16", "read": "pass", "layers": "pass", "validation": "", "total": "error.sum()",
             "weight": "len(y)", "more": ""} | parts  # fmt: skip
    (folder / "own_task.py").write_text(CUSTOM.format(**given), encoding="utf-8")
    recipe = folder / "recipe.toml"
    text = f'[run]\ndevice = "cpu"\nepochs = 2\n[task]\nkind = "custom"\nentry = "own_task:Task"\n{tables}'
    if "[accumulation]" not in tables:
        text += "\n[accumulation]\nmicro_batch_size = 4\ngradient_accumulation_steps = 2\n"
    recipe.write_text(text, encoding="utf-8")
    return recipe


@pytest.fixture(autouse=True)
def own_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test's task is its own."""
    import sys

    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "own_task", raising=False)


def examined(recipe: Path, **options: Any) -> tuple[CheckReport, list[AnyCheckMessage]]:
    """The report, and what was told on the way."""
    told: list[AnyCheckMessage] = []
    return Examination(load_recipe(recipe), told.append, **options).run(), told


def by_code(report: CheckReport) -> dict[str, Finding]:
    """Its findings; each has words."""
    assert all(title(finding) and sentence(finding) for finding in report.findings)
    assert all("?" not in sentence(finding).replace("?>", "") for finding in report.findings)
    return {finding.code: finding for finding in report.findings}


def test_every_code_has_a_title_and_a_sentence() -> None:
    """And nothing is worded that has no title."""
    assert TITLES.keys() == SENTENCES.keys()
    assert (cost(0.02), cost(3.84)) == ("< 0.1 s", "3.8 s")


def test_a_right_task_is_ready_to_start(tmp_path: Path) -> None:
    """Every part of it was tried, and what can be told of its micro-batches is shown."""
    report, told = examined(custom(tmp_path))
    assert report.refused is None
    found = by_code(report)
    assert {finding.state for finding in report.findings} == {"ok"}
    assert {
        "data-read", "n-fits-exactly", "warmup-none", "split-none", "model-built", "optimizer-holds",
        "batch-norm-none", "loss-adds-up", "loss-finite", "gradient-everywhere", "disk-enough",
    } <= set(found)  # fmt: skip
    assert report.window is not None
    rows = report.window.rows
    assert all(isinstance(row, TensorRow) for row in rows)
    assert [fact.shape for row in rows if isinstance(row, TensorRow) for fact in row.tensors[:1]] == [
        (4, 3)
    ] * 2
    assert [message for message in told if isinstance(message, Finding)] == list(report.findings)


@pytest.mark.parametrize(
    ("parts", "code", "state", "words"),
    [
        ({"layers": "self.idle = torch.nn.Linear(2, 2)"}, "gradient-missing", "stop", "idle.weight"),
        ({"total": "error.sum() * float('nan')"}, "loss-not-finite", "stop", "nan"),
        ({"total": "error.mean()"}, "loss-does-not-add-up", "doubtful", "looks like a mean"),
        (
            {"layers": "self.used = torch.nn.Sequential(torch.nn.BatchNorm1d(3), torch.nn.Linear(3, 1))"},
            "batch-norm", "doubtful", "used.0",
        ),
        (
            {"more": "def optimizer(self, parameters): return torch.optim.SGD(parameters[:1], lr=0.1)"},
            "optimizer-misses", "doubtful", "used.bias",
        ),
        ({"more": "def weights(self, batch): return {'loss': 0.0}"}, "nothing-to-learn", "stop", "D is 0"),
        ({"read": "raise KeyError('no such column')"}, "data-refused", "stop", "no such column"),
        ({"read": "raise KeyError('no such column')"}, "data-refused", "stop", "own_task.py:8"),
        ({"layers": "raise RuntimeError('no weights')"}, "model-refused", "stop", "no weights"),
    ],
)  # fmt: skip
def test_a_flaw_is_named(tmp_path: Path, parts: dict[str, str], code: str, state: str, words: str) -> None:
    """By its place, with the state that it deserves."""
    report, _ = examined(custom(tmp_path, **parts))
    finding = by_code(report)[code]
    assert finding.state == state
    assert words in sentence(finding)
    assert (report.refused is not None) == (state == "stop")


def test_a_missing_gradient_may_be_meant_and_a_nan_may_not(tmp_path: Path) -> None:
    """Only one of these stops can be overruled."""
    report, _ = examined(custom(tmp_path, layers="self.idle = torch.nn.Linear(2, 2)"))
    assert by_code(report)["gradient-missing"].may_be_accepted


def test_model_checks_wait_for_the_data(tmp_path: Path) -> None:
    """What would fail anyway is not built; that is said."""
    report, _ = examined(custom(tmp_path, read="raise KeyError('x')"))
    assert by_code(report)["model-later"].state == "waits"
    assert "model-built" not in by_code(report)


def test_what_was_not_compared_is_not_called_apart(tmp_path: Path) -> None:
    """Nobody knows what tells the samples of the user's own code apart: they are counted."""
    found = by_code(examined(custom(tmp_path, validation=", validation=Data()"), model=False)[0])
    assert sentence(found["split-held"]) == "16 samples are held out"


@pytest.mark.parametrize(
    ("tables", "code", "change"),
    [
        ("[accumulation]\nmicro_batch_size = 4\ngradient_accumulation_steps = 16\n", "n-exceeds", 4),
        (
            '[accumulation]\nmicro_batch_size = 4\ngradient_accumulation_steps = 16\ntail = "drop"\n',
            "n-drops-all", 4,
        ),
        ("[schedule]\nwarmup_samples = 640\n", "warmup-exceeds", 3),
    ],
)  # fmt: skip
def test_lengths_are_held_against_the_data(
    tmp_path: Path, tables: str, code: str, change: int | None
) -> None:
    """N x b, and the warm-up; what would fit is offered."""
    finding = by_code(examined(custom(tmp_path, tables))[0])[code]
    assert (None if finding.change is None else finding.change.value) == change


# ------------------------------------------------------------------------------------------ text


def text_recipe(
    folder: Path, rows: list[dict[str, Any]], tokenizer: str = "tok_plain", task: str = "", data: str = ""
) -> Path:
    """A recipe of chats in a file."""
    if not (folder / tokenizer).exists():
        write_door_model(folder, tokenizer)
    (folder / "data.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    recipe = folder / "chat.toml"
    recipe.write_text(
        f'[run]\ndevice = "cpu"\nepochs = 1\n[task]\nkind = "causal-lm"\nmodel = "{tokenizer}"\n'
        f'method = "full"\n{task}\n[data]\npath = "data.jsonl"\n{data}\n',
        encoding="utf-8",
    )
    return recipe


def chats(count: int, *, alike: bool = False) -> list[dict[str, Any]]:
    """Prompts with answers."""
    return [{"prompt": f"what is {0 if alike else n}?", "completion": "yes"} for n in range(count)]


def save_weights(folder: Path, **changed: int) -> None:
    """A tiny model beside its tokenizer."""
    import transformers

    config = transformers.AutoConfig.from_pretrained(folder)
    for key, value in {"intermediate_size": 8, "num_hidden_layers": 1, **changed}.items():
        setattr(config, key, value)
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def test_weights_that_are_not_there_leave_the_data_checked(tmp_path: Path) -> None:
    """A folder with a tokenizer and a configuration: the rows are right, the model waits."""
    report, _ = examined(text_recipe(tmp_path, chats(20)))
    assert report.refused is None
    finding = by_code(report)["model-waits"]
    assert finding.state == "waits"
    assert "holds no weights" in sentence(finding)


def test_a_text_model_is_tried(tmp_path: Path) -> None:
    """Its loss is that of guessing, for its weights are random: that is doubtful in a model to be tuned."""
    recipe = text_recipe(tmp_path, chats(20))
    save_weights(tmp_path / "tok_plain")
    report, _ = examined(recipe)
    found = by_code(report)
    assert report.refused is None
    assert found["gradient-everywhere"].state == "ok"
    assert found["loss-above-chance"].state == "doubtful"
    assert found["split-apart"].values["held"] == 1


def test_ids_beyond_the_embedding_are_shown_and_refused(tmp_path: Path) -> None:
    """The rows are there to be looked at, the token stands out, and more rows are offered."""
    recipe = text_recipe(tmp_path, chats(4), data="validation_fraction = 0.0")
    rows = json.loads((tmp_path / "tok_plain" / "config.json").read_text())["vocab_size"]
    import transformers

    config = transformers.AutoConfig.from_pretrained(tmp_path / "tok_plain")
    config.vocab_size = 3
    config.save_pretrained(tmp_path / "tok_plain")
    report, _ = examined(recipe)
    finding = by_code(report)["ids-beyond"]
    assert finding.change is not None
    assert (finding.change.key, finding.change.value) == ("task.resize_embedding", True)
    assert finding.values["count"] == 4
    assert report.refused is not None
    assert "data.jsonl:1" in report.refused
    assert "has 3 rows" in report.refused
    assert report.window is not None
    assert all(isinstance(row, TokenRow) and row.outside for row in report.window.rows)
    assert rows > 3


def test_the_same_sample_in_both_parts_is_named(tmp_path: Path) -> None:
    """Byte for byte; and repeats within the training part."""
    found = by_code(examined(text_recipe(tmp_path, chats(40, alike=True)))[0])
    assert found["split-overlaps"].state == "doubtful"
    assert "data.jsonl:" in sentence(found["split-overlaps"])
    assert found["repeats"].values["count"] == 37


def test_a_template_of_another_family_is_told_by_its_tokens(tmp_path: Path) -> None:
    """What it writes as a turn's mark falls to pieces in this tokenizer."""
    write_door_model(tmp_path, "tok_plain")
    (tmp_path / "other.jinja").write_text(
        "{% for m in messages %}<|start_of_turn|>{{ m.role }}\n{{ m.content }}<|e|>{% endfor %}"
        "{% if add_generation_prompt %}<|start_of_turn|>assistant\n{% endif %}",
        encoding="utf-8",
    )
    report, _ = examined(text_recipe(tmp_path, chats(4), task='chat_template = "other.jinja"'))
    finding = by_code(report)["template-foreign"]
    assert "<|start_of_turn|>" in sentence(finding)
    own = by_code(examined(text_recipe(tmp_path, chats(4)))[0])
    assert own["template-own"].state == "ok"


def test_what_is_cut_or_left_out_is_counted(tmp_path: Path) -> None:
    """Of all records."""
    rows = [*chats(9), {"prompt": "long " * 90, "completion": "yes"}]
    found = by_code(examined(text_recipe(tmp_path, rows, task="max_length = 64"))[0])
    assert (found["lengths-cut"].values["count"], found["lengths-cut"].values["samples"]) == (1, 10)
    assert "their beginning is cut" in sentence(found["lengths-cut"])
    dropped = by_code(examined(text_recipe(tmp_path, rows, task='max_length = 64\nlong = "drop"'))[0])
    assert dropped["data-read-in-part"].values["left_out"] == 1


def test_the_quick_look_reads_the_first_records_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes first, says that it is not the whole, and what breaks behind it is found in the whole."""
    monkeypatch.setitem(QUICK_RECORDS, "causal-lm", 5)
    recipe = text_recipe(tmp_path, [*chats(9), {"prompt": "no answer"}])
    report, told = examined(recipe, quick=True)
    windows = [message for message in told if isinstance(message, FirstWindow)]
    assert [window.whole for window in windows] == [False]
    assert windows[0].looked_at == 5
    assert report.refused is not None
    assert "data.jsonl:10" in report.refused


def test_what_the_template_does_is_said(tmp_path: Path) -> None:
    """It gives answers no end: one is added."""
    report, _ = examined(text_recipe(tmp_path, chats(4), "tok_endless"))
    assert any("no end" in said for said in report.said)


# -------------------------------------------------------------------------------------- pictures


def scenes_recipe(folder: Path, task: str = "", data: str = "") -> Path:
    """A recipe of made-up scenes."""
    if not (folder / "images").exists():
        write_scenes(folder, count=6, side=64)
    recipe = folder / "scenes.toml"
    recipe.write_text(
        '[run]\ndevice = "cpu"\nepochs = 1\n[task]\nkind = "segmentation"\nencoder = "resnet18"\n'
        f'classes = 3\ntile_size = 32\nbatch_norm = "group-norm"\n{task}\n'
        f'[data]\nimages = "images"\nmasks = "masks"\n{data}\n'
        "[accumulation]\nmicro_batch_size = 2\ngradient_accumulation_steps = 2\n",
        encoding="utf-8",
    )
    return recipe


def test_tiles_are_shown_with_their_masks(tmp_path: Path) -> None:
    """Pictures to look at, shares that sum to 1, classes over all masks, and a model that was tried."""
    shown = tmp_path / "shown"
    shown.mkdir()
    report, _ = examined(scenes_recipe(tmp_path), pictures=shown)
    assert report.refused is None
    assert report.window is not None
    rows = [row for row in report.window.rows if isinstance(row, PictureRow)]
    assert len(rows) == 4
    for row in rows:
        assert row.shape == (3, 32, 32)
        assert sum(row.mask_shares.values()) == pytest.approx(1.0)
        with Image.open(row.picture) as picture, Image.open(row.mask) as mask:
            assert picture.size == mask.size == (32, 32)
            classes = np.unique(np.asarray(mask)).tolist()
        assert {str(value) for value in classes} == set(row.mask_shares)
    assert report.window.denominators["cross-entropy"] == 4 * 32 * 32
    assert report.shares is not None
    assert [entry.meaning for entry in report.shares.entries] == ["class"] * 3
    found = by_code(report)
    assert found["gradient-everywhere"].state == "ok"
    assert found["loss-as-chance"].values["classes"] == 3


def test_an_unknown_mask_value_is_shown_where_it_lies(tmp_path: Path) -> None:
    """With its share, and what would decide it."""
    recipe = scenes_recipe(tmp_path)
    for mask in (tmp_path / "masks").iterdir():
        with Image.open(mask) as opened:
            array = np.array(opened)
        array[:16, :16] = 9
        Image.fromarray(array).save(mask)
    report, _ = examined(recipe)
    finding = by_code(report)["masks-undecided"]
    assert finding.change is not None
    assert (finding.change.key, finding.change.value) == ("task.ignore_value", 9)
    assert report.shares is not None
    assert [
        (entry.value, entry.share) for entry in report.shares.entries if entry.meaning == "undecided"
    ] == [(9, 0.0625)]
    assert report.window is not None
    assert all(isinstance(row, PictureRow) and row.mask_shares["9"] == 0.0625 for row in report.window.rows)


def test_a_class_that_never_occurs_stops_unless_allowed(tmp_path: Path) -> None:
    """The key that allows it is offered."""
    recipe = scenes_recipe(tmp_path)
    recipe.write_text(recipe.read_text("utf-8").replace("classes = 3", "classes = 4"), encoding="utf-8")
    missing = by_code(examined(recipe)[0])["classes-missing"]
    assert missing.change is not None
    assert missing.change.key == "data.allow_missing_classes"


def test_a_rare_class_that_validation_lacks_is_said(tmp_path: Path) -> None:
    """In one mask of many."""
    write_scenes(tmp_path, count=20, side=64)
    with Image.open(tmp_path / "masks" / "scene-7.png") as opened:
        array = np.array(opened)
    array[:8, :8] = 3
    Image.fromarray(array).save(tmp_path / "masks" / "scene-7.png")
    recipe = scenes_recipe(tmp_path, data="validation_fraction = 0.1")
    recipe.write_text(recipe.read_text("utf-8").replace("classes = 3", "classes = 4"), encoding="utf-8")
    finding = by_code(examined(recipe, model=False)[0]).get("class-rare")
    assert finding is not None
    assert (finding.values["value"], finding.values["files"], finding.values["all_files"]) == (3, 1, 20)


def test_sixteen_bits_are_measured_and_float_needs_a_range(tmp_path: Path) -> None:
    """A range is proposed from the numbers themselves; with it the check goes on."""
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    for name in ("f0.tif", "f1.tif"):
        shutil.copy(DOOR / name, tmp_path / "images" / name)
        import tifffile

        shape = tifffile.imread(DOOR / name).shape
        Image.fromarray(np.zeros(shape, np.uint8)).save(tmp_path / "masks" / name.replace("tif", "png"))
    recipe = scenes_recipe(tmp_path, "channels = 1", "allow_missing_classes = true")
    report, _ = examined(recipe, model=False)
    finding = by_code(report)["range-unknown"]
    assert finding.change is not None
    assert report.values is not None
    assert finding.change.value == [report.values.low, report.values.high]
    low, high = finding.change.value
    text = recipe.read_text("utf-8").replace("[data]", f"[data]\nvalue_range = [{low}, {high}]")
    recipe.write_text(text, encoding="utf-8")
    mended, _ = examined(recipe, model=False)
    assert mended.refused is None
    assert by_code(mended)["values-scaled"].state == "ok"


def test_classes_of_pictures_are_counted(tmp_path: Path) -> None:
    """With their names; mixtures name both classes."""
    write_digits(tmp_path / "digits", per_class=4)
    recipe = tmp_path / "digits.toml"
    recipe.write_text(
        '[run]\ndevice = "cpu"\nepochs = 1\n[task]\nkind = "image-classification"\nmodel = "resnet18"\n'
        'image_size = 32\nbatch_norm = "group-norm"\nmixup = 1.0\n[data]\npath = "digits"\n'
        "[accumulation]\nmicro_batch_size = 8\ngradient_accumulation_steps = 2\n",
        encoding="utf-8",
    )
    report, _ = examined(recipe)
    assert report.refused is None
    assert report.shares is not None
    assert [(entry.name, entry.files) for entry in report.shares.entries] == [(str(n), 3) for n in range(10)]
    assert report.window is not None
    labels = [row.label for row in report.window.rows if isinstance(row, PictureRow)]
    assert any("%" in label for label in labels)
    assert by_code(report)["loss-as-chance"].values["classes"] == 10


# ---------------------------------------------------------------------------------- on the way out


def test_messages_come_back_as_they_went(tmp_path: Path) -> None:
    """One line each."""
    _, told = examined(custom(tmp_path))
    for message in told:
        line = encode_check(message)
        assert b"\n" not in line
        assert decode_check(line) == message


def test_a_window_gets_as_many_rows_as_a_person_looks_at() -> None:
    """The figures stay those of the whole step."""
    from trainer_backend.preflight.findings import MicroBatchSeen

    row = TokenRow(source="", texts=("a",) * 500, weights=(1.0,) * 500)
    seen = MicroBatchSeen(rows=(row,) * 8, samples=8, weights={"loss": 4000.0})
    cut = trimmed(FirstWindow(whole=True, micro_batches=(seen,) * 40, denominators={"loss": 160_000.0}))
    assert [bool(batch.rows) for batch in cut.micro_batches] == [True] * 12 + [False] * 28
    assert all(batch.weights == {"loss": 4000.0} for batch in cut.micro_batches)
    assert cut.denominator == 160_000.0


def test_the_command_prints_a_text_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Verdict first, what is learnt between marks, the checks with their cost."""
    assert main([str(text_recipe(tmp_path, chats(8)))]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("Ready to start")
    assert "⟦yes<|e|>⟧" in shown
    assert "Something to learn" in shown


def test_a_refused_recipe_is_refused_in_every_form(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """As a sentence, as an object, as a line."""
    recipe = tmp_path / "bad.toml"
    recipe.write_text("[run]\nepochs = 0\n", encoding="utf-8")
    assert main([str(recipe)]) == 2
    assert "run.epochs" in capsys.readouterr().err
    assert main([str(recipe), "--json"]) == 2
    assert "run.epochs" in json.loads(capsys.readouterr().out)["refused"]
    assert main([str(recipe), "--stream"]) == 2
    assert "run.epochs" in json.loads(capsys.readouterr().out)["message"]


def test_a_check_is_kept_with_the_run_that_follows(tmp_path: Path) -> None:
    """By what the recipe says: another recipe has none. The data's rows are not copied."""
    path = custom(tmp_path)
    report, _ = examined(path)
    run = tmp_path / "run"
    run.mkdir()
    recipe = load_recipe(path)
    assert not keep_with_run(recipe, run)
    keep_check(recipe, encode_check(without_rows(report)))
    assert keep_with_run(recipe, run)
    kept = decode_check((run / "check.json").read_bytes())
    assert isinstance(kept, CheckReport)
    assert kept.findings == report.findings
    assert kept.window is not None
    assert kept.window.rows == ()
    path.write_text(path.read_text("utf-8") + "\n[optimizer]\nlearning_rate = 0.5\n", encoding="utf-8")
    assert not keep_with_run(load_recipe(path), run)
