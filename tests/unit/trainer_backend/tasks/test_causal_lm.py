"""The fine-tuning task on real (tiny) models: what is scored, what is refused, what is saved."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name

from tests.support.language_models import write_json_lines, write_model
from trainer_backend.errors import GradaccError, UsageError
from trainer_backend.kinds.causal_lm import CausalLMData, CausalLMTask
from trainer_backend.tasks.causal_lm import CausalLM
from trainer_backend.tasks.causal_lm.layout import IGNORED, budget_groups, packed_groups

SAMPLES = [
    {"prompt": "hello", "completion": " world"},
    {"prompt": "this is", "completion": " a text, a longer text, and the longest text of them all"},
    {"prompt": [{"role": "user", "content": "hi"}], "completion": "yes"},
    {"prompt": "", "completion": "an answer to nothing at all"},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A recipe's folder with a model directory and data."""
    write_model(tmp_path / "model")
    write_json_lines(tmp_path / "data.jsonl", SAMPLES)
    return tmp_path


def make(
    folder: Path, *, warned: list[Any] | None = None, data: dict[str, Any] | None = None, **task: Any
) -> CausalLM:
    """The task as a recipe asks for it."""
    say = [] if warned is None else warned
    options: dict[str, Any] = {"model": "model", "method": "full", "max_length": 64} | task
    files: dict[str, Any] = {"path": "data.jsonl", "validation_fraction": 0.25} | (data or {})
    return CausalLM(
        CausalLMTask(**options),
        CausalLMData(**files),
        folder=folder,
        warn=lambda code, values: say.append((code, values)),
    )


def all_items(task: CausalLM) -> list[Any]:
    """Every training item."""
    train = task.datasets().train
    return [train[index] for index in range(len(train))]


def gradient(task: CausalLM, model: torch.nn.Module, micro_batches: list[list[Any]]) -> torch.Tensor:
    """The gradient of the sum form over micro-batches, all parameters end to end, fp64."""
    model.zero_grad()
    weight = 0.0
    for items in micro_batches:
        batch = task.collate(items)
        torch.stack([term.total for term in task.loss(model, batch)]).sum().backward()  # type: ignore[no-untyped-call]
        weight += task.weights(batch)["loss"]
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]) / weight


@pytest.mark.parametrize("shape", ["llama", "gpt2"])
@pytest.mark.parametrize("options", [{}, {"layout": "packing"}, {"token_budget": 100}])
def test_micro_batches_add_up_to_the_gradient_of_the_large_batch(
    tmp_path: Path, shape: Any, options: dict[str, Any]
) -> None:
    """Ragged answers, every layout: equal at 1e-12 in fp64."""
    write_model(tmp_path / "model", shape)
    write_json_lines(tmp_path / "data.jsonl", SAMPLES * 3)
    task = make(tmp_path, **options)
    model = task.model().double()
    items = all_items(task)
    whole = gradient(task, model, [items])
    parts = gradient(task, model, [items[:1], items[1:]])
    assert (whole - parts).norm() <= 1e-12 * whole.norm()


def test_the_loss_is_the_library_s_own_on_one_full_row(folder: Path) -> None:
    """Against the labels path of transformers, which takes the mean."""
    task = make(folder, data={"path": "text.txt"})
    (folder / "text.txt").write_text("this is a text, hello world", encoding="utf-8")
    model = task.model().double()
    batch = task.collate(all_items(task))
    (term,) = task.loss(model, batch)
    expected = model(input_ids=batch.tokens, labels=batch.tokens).loss
    torch.testing.assert_close(
        term.total / term.weight, expected.double(), rtol=1e-6, atol=0
    )  # its loss is fp32


def test_a_mixture_of_experts_brings_its_auxiliary_loss_with_the_main_weight(tmp_path: Path) -> None:
    """Identical rows in every micro-batch: gradient independent of N."""
    write_model(tmp_path / "model", "mixtral")
    write_json_lines(tmp_path / "data.jsonl", [SAMPLES[0]] * 6)
    task = make(tmp_path)
    model: Any = task.model().double()
    model.config._experts_implementation = "eager"  # the grouped kernels know no fp64
    items = all_items(task)[:4]
    terms = list(task.loss(model, task.collate(items)))
    assert [term.name for term in terms] == ["loss", "auxiliary"]
    assert float(terms[1].total.detach()) > 0
    whole, parts = gradient(task, model, [items]), gradient(task, model, [items[:1], items[1:2], items[2:]])
    assert (whole - parts).norm() <= 1e-12 * whole.norm()


def test_a_coefficient_that_the_model_makes_no_use_of_leaves_the_loss_alone(folder: Path) -> None:
    """Llama 4 and Doge have one and give no auxiliary loss: denominators that are counted match the terms."""
    plain = make(folder)
    batch = plain.collate(all_items(plain)[:2])
    (right,) = plain.loss(plain.model(), batch)
    path = folder / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | {"router_aux_loss_coef": 0.5}), "utf-8")
    task = make(folder)
    main, unused = task.loss(task.model(), batch)
    assert {term.name: term.weight for term in (main, unused)} == task.weights(batch)
    assert float(unused.total.detach()) == 0.0
    assert float(main.total.detach()) == float(right.total.detach())


def test_packed_samples_do_not_see_each_other(folder: Path) -> None:
    """A packed row's loss is the sum of its samples' losses alone."""
    packed, padded = make(folder, layout="packing"), make(folder)
    model = packed.model().double()
    (row_term,) = packed.loss(model, packed.collate(all_items(packed)))
    alone = sum(
        float(padded.loss(model, padded.collate([item]))[0].total.detach()) for item in all_items(padded)
    )
    assert float(row_term.total.detach()) == pytest.approx(alone, rel=1e-12)


def test_prompts_have_no_loss_and_answers_do(folder: Path) -> None:
    """The targets of a prompt-answer pair and of a conversation decode to the answers."""
    task = make(folder)
    datasets: Any = task.datasets()
    batches = [task.collate([items[0]]) for items in (datasets.train, datasets.validation)]
    batches += [task.collate([datasets.train[index]]) for index in range(1, len(datasets.train))]
    texts = {task.tokenizer.decode(batch.targets[batch.targets != IGNORED]) for batch in batches}
    assert " world<|end|>" in texts
    assert "yes<|end|>" in texts


def test_sample_normalization_weighs_each_sample_the_same(folder: Path) -> None:
    """D is the number of samples, and a long answer counts no more than a short one."""
    task = CausalLM(
        CausalLMTask(model="model", method="full", max_length=64),
        CausalLMData(path="data.jsonl"),
        folder=folder,
        normalization="samples",
    )
    model = task.model().double()
    items = all_items(task)
    batch = task.collate(items)
    (term,) = task.loss(model, batch)
    means = []
    for item in items:
        alone = task.collate([item])
        logits = model(input_ids=alone.tokens, attention_mask=alone.attended).logits
        means.append(F.cross_entropy(logits[0], alone.targets[0], ignore_index=IGNORED))
    assert float(term.weight) == pytest.approx(len(items), rel=1e-6)
    torch.testing.assert_close(term.total, torch.stack(means).sum(), rtol=1e-6, atol=0)


@pytest.mark.filterwarnings("ignore:.*is_activation_checkpointing.*:FutureWarning")  # peft's own call
def test_lora_trains_adapters_alone_and_plain_peft_loads_them(folder: Path) -> None:
    """Base weights are frozen; the saved adapter gives the same logits; the merged export too."""
    import peft
    import transformers

    task = make(folder, method="lora", lora_rank=4, export_merged=True, activation_checkpointing=True)
    model = task.model()
    trained = [name for name, parameter in model.named_parameters() if parameter.requires_grad]
    assert trained
    assert all("lora_" in name for name in trained)
    gradient(task, model, [all_items(task)])
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(std=0.1, generator=torch.Generator().manual_seed(1))
    model.eval()
    tokens = task.collate(all_items(task)).tokens
    expected = model(input_ids=tokens).logits
    adapter, merged = task.export(model, folder / "out")
    base = transformers.AutoModelForCausalLM.from_pretrained(folder / "model")
    plain = peft.PeftModel.from_pretrained(base, adapter).eval()
    torch.testing.assert_close(plain(input_ids=tokens).logits, expected)
    whole = transformers.AutoModelForCausalLM.from_pretrained(merged).eval()
    torch.testing.assert_close(whole(input_ids=tokens).logits, expected, rtol=1e-4, atol=1e-5)


def test_samples_are_written_at_an_evaluation(folder: Path) -> None:
    """The prompt is continued and kept as a text."""
    task = make(folder, generate=("hello",), generate_tokens=4)
    ((kind, path, _),) = task.artifacts(task.model().eval(), folder / "artifacts")
    assert kind == "text"
    assert path.read_text("utf-8").startswith("hello")


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ("{not json\n", "data.jsonl:1: not valid JSON"),
        ('{"text": "fine and well"}\n[1]\n', "data.jsonl:2: not a JSON object"),
        ('{"txt": "x"}\n', "data.jsonl:1: has none of the known fields"),
        ('{"messages": [{"role": "user"}]}\n', "data.jsonl:1: message 1 has no content"),
        ('{"prompt": 3, "completion": "x"}\n', "must be text"),
        ("", "has no sample with a token to learn from"),
        ('{"messages": [{"role": "user", "content": "hi"}]}\n', "1 without an answer"),
    ],
)
def test_a_broken_line_is_named_by_file_and_line(folder: Path, lines: str, words: str) -> None:
    """The first fault stops the run before it starts."""
    (folder / "data.jsonl").write_text(lines, encoding="utf-8")
    with pytest.raises(UsageError) as caught:
        make(folder).datasets()
    assert words in str(caught.value)


def test_broken_lines_can_be_skipped_and_are_counted(folder: Path) -> None:
    """Under skip the rest trains, and the number is said."""
    with (folder / "data.jsonl").open("a", encoding="utf-8") as file:
        file.write("{oops\n")
    warned: list[Any] = []
    make(folder, warned=warned, data={"broken": "skip"}).datasets()
    assert ("records-skipped", {"data": "training", "count": 1}) in warned


def test_a_conversation_without_an_answer_is_left_out_and_counted(folder: Path) -> None:
    """All its tokens are masked, so nothing can be learnt from it; the others train."""
    asked = {"role": "user", "content": "hello?"}
    talks = [[asked], [asked, {"role": "assistant", "content": "yes"}], [asked]]
    write_json_lines(folder / "data.jsonl", [{"messages": messages} for messages in talks])
    warned: list[Any] = []
    found = make(folder, warned=warned, data={"validation_path": "data.jsonl"}).datasets()
    assert len(found.train) == 1
    assert ("records-without-answer", {"data": "training", "count": 2}) in warned


def test_one_sample_trains_and_nothing_is_held_out(folder: Path) -> None:
    """And that is said."""
    write_json_lines(folder / "data.jsonl", SAMPLES[:1])
    warned: list[Any] = []
    found = make(folder, warned=warned).datasets()
    assert (len(found.train), found.validation) == (1, None)
    assert warned[1:] == [("no-validation-data", {"samples": 1})]


def test_a_fraction_of_nothing_is_no_validation(folder: Path) -> None:
    """As people mean by val_size = 0: everything is trained on, and nothing is to be said."""
    warned: list[Any] = []
    found = make(folder, data={"validation_fraction": 0}, warned=warned).datasets()
    assert (len(found.train), found.validation) == (len(SAMPLES), None)
    assert [code for code, _ in warned] == ["read-as"]


def test_text_files_are_samples_of_plain_text(folder: Path) -> None:
    """A folder of them; every token but the first is learnt."""
    (folder / "books").mkdir()
    for name in ("one.txt", "two.md"):
        (folder / "books" / name).write_text("hello world, this is a text", encoding="utf-8")
    found = make(folder, data={"path": "books", "validation_path": "books/one.txt"}).datasets()
    assert len(found.train) == 2
    tokens, has_loss = found.train.encoded.sample(0)
    assert len(tokens) > 1
    assert bool(has_loss.all())
    (folder / "empty").mkdir()
    with pytest.raises(UsageError, match="holds no"):
        make(folder, data={"path": "empty"}).datasets()


def test_a_library_that_is_missing_is_a_sentence_with_the_command(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers for all, peft for adapters."""
    task = make(folder, method="lora")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UsageError, match=re.escape("needs peft. Run: pip install peft")):
        task.model()
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UsageError, match=re.escape("pip install accelerate peft tokenizers transformers")):
        make(folder)


def test_long_samples_are_cut_and_counted(folder: Path) -> None:
    """Nothing longer than max_length enters, and that is said."""
    warned: list[Any] = []
    task = make(folder, warned=warned, max_length=12)
    assert max(task.datasets().train.encoded.lengths()) <= 12
    assert any(code == "records-cut" for code, _ in warned)


def test_parquet_is_read_like_json_lines(folder: Path) -> None:
    """The same records from a table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(SAMPLES[:2]), folder / "data.parquet")
    task = make(folder, data={"path": "data.parquet", "validation_path": "data.jsonl"})
    assert len(task.datasets().train) == 2
    (folder / "data.parquet").write_bytes(b"no parquet")
    with pytest.raises(UsageError, match="not a Parquet file"):
        make(folder, data={"path": "data.parquet"}).datasets()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "nowhere/nothing", "offline": True}, "the hub may not be asked"),
        ({"method": "lora", "lora_targets": ("q_prj",)}, "Did you mean q_proj?"),
        ({"method": "qlora"}, "qlora"),
    ],
)
def test_what_cannot_be_loaded_is_a_sentence(folder: Path, options: dict[str, Any], words: str) -> None:
    """Model, adapters and quantisation."""
    with pytest.raises(UsageError) as caught:
        make(folder, **options).model()
    assert words in str(caught.value)


def test_an_incomplete_model_directory_is_a_sentence(folder: Path) -> None:
    """Weights are missing."""
    (folder / "model" / "model.safetensors").unlink()
    with pytest.raises(UsageError, match="Is the directory complete"):
        make(folder).model()


def test_a_tokenizer_without_pad_token_or_template_works(tmp_path: Path) -> None:
    """Padding is neither attended nor scored; a plain template is used and said."""
    write_model(tmp_path / "model", pad=False, chat=False)
    write_json_lines(tmp_path / "data.jsonl", SAMPLES)
    warned: list[Any] = []
    task = make(tmp_path, warned=warned)
    assert len(all_items(task)) == 3
    assert [code for code, _ in warned] == ["read-as", "no-chat-template", "prompts-joined"]


def test_an_unknown_extra_loss_is_refused_by_name(folder: Path) -> None:
    """Its denominator is not known, so it cannot be summed."""
    task = make(folder)
    model = task.model()
    forward = model.forward

    def with_extra(*args: Any, **options: Any) -> Any:
        outputs = forward(*args, **options)
        outputs["z_loss"] = outputs.logits.sum()
        return outputs

    model.forward = with_extra
    with pytest.raises(GradaccError, match="z_loss"):
        task.loss(model, task.collate(all_items(task)))


def test_a_batch_splits_by_rows_and_loses_nothing(folder: Path) -> None:
    """Weights, items and tokens of the parts add up; more parts than rows gives one a row."""
    task = make(folder)
    batch = task.collate(all_items(task))
    parts = task.split(batch, 8)
    assert len(parts) == batch.tokens.shape[0]
    assert sum(task.weights(part)["loss"] for part in parts) == task.weights(batch)["loss"]
    assert [sum(counts) for counts in zip(*map(task.count, parts), strict=True)] == list(task.count(batch))


def test_groups_hold_every_sample_once_and_keep_their_bounds() -> None:
    """Packing and token budgets."""
    lengths = [1 + (index * 37) % 50 for index in range(500)]
    for groups, cost, bound in [
        (packed_groups(lengths, 64, 0), sum, 64),
        (budget_groups(lengths, 200, 0), lambda row: len(row) * max(row), 200),
    ]:
        assert sorted(number for group in groups for number in group) == list(range(500))
        assert all(cost([lengths[number] for number in group]) <= bound for group in groups)
    assert sum(lengths) / (64 * len(packed_groups(lengths, 64, 0))) > 0.9


def test_a_budget_below_the_longest_sample_is_refused(folder: Path) -> None:
    """And a budget makes no sense with packing."""
    with pytest.raises(UsageError, match="token_budget = 3 is less"):
        make(folder, token_budget=3).datasets()
    with pytest.raises(UsageError, match="packed row"):
        make(folder, token_budget=100, layout="packing")
