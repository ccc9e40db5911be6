"""The loss in chunks: the same sum and gradients as with all logits at once, on heads of every kind."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name

from tests.support.language_models import Shape, write_json_lines, write_model
from trainer_backend.errors import UsageError
from trainer_backend.kinds.causal_lm import CausalLMData, CausalLMTask
from trainer_backend.tasks.causal_lm import CausalLM, chunked
from trainer_backend.tasks.causal_lm.chunked import LogitShape, chunked_cross_entropy
from trainer_backend.tasks.causal_lm.head import ScoringHead, scores_in_chunks

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*is_activation_checkpointing.*:FutureWarning"
)  # peft's own call
SAMPLES = [
    {"prompt": "hello", "completion": " world"},
    {"prompt": "this is", "completion": " a text, a longer text, and the longest text of them all"},
    {"prompt": "", "completion": "an answer to nothing at all"},
]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few rows a chunk, the last one short."""
    monkeypatch.setitem(chunked.CHUNK_ELEMENTS, "cpu", 3_000)


def make(
    folder: Path, shape: Shape = "llama", *, warned: list[Any] | None = None, **options: Any
) -> CausalLM:
    """The task on a model of this shape, which is written once."""
    if not (folder / "model").exists():
        write_model(folder / "model", shape)
        write_json_lines(folder / "data.jsonl", SAMPLES * 2)
    said = [] if warned is None else warned
    settings: dict[str, Any] = {"model": "model", "method": "full", "max_length": 64} | options
    return CausalLM(
        CausalLMTask(**settings),
        CausalLMData(path="data.jsonl", validation_fraction=0.2),
        folder=folder,
        warn=lambda code, values: said.append((code, values)),
    )


def loss_and_gradients(
    task: CausalLM, model: torch.nn.Module
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Of one micro-batch of all samples."""
    train = task.datasets().train
    batch = task.collate([train[index] for index in range(len(train))])
    model.zero_grad()
    total = next(iter(task.loss(model, batch))).total
    total.backward()  # type: ignore[no-untyped-call]
    return total.detach(), {
        name: parameter.grad for name, parameter in model.named_parameters() if parameter.grad is not None
    }


def agree(chunked_task: CausalLM, full_task: CausalLM, *, within: float = 1e-12) -> None:
    """Same total, same gradient of every parameter, in fp64."""
    model = chunked_task.model().double()
    assert scores_in_chunks(model)
    plain = full_task.model().double()
    plain.load_state_dict(model.state_dict())
    for either in (model, plain):
        either.config._experts_implementation = "eager"  # type: ignore[union-attr]  # the grouped kernels know no fp64
    total, gradients = loss_and_gradients(chunked_task, model)
    expected, wanted = loss_and_gradients(full_task, plain)
    assert abs(total - expected) <= within * abs(expected)
    assert gradients.keys() == wanted.keys()
    for name, gradient in gradients.items():
        assert (gradient - wanted[name]).norm() <= within * wanted[name].norm(), name


@pytest.mark.parametrize("shape", ["llama", "gpt2", "mixtral", "gemma2", "cohere", "granite"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_chunks_add_up_to_the_loss_of_all_logits(tmp_path: Path, shape: Shape, smoothing: float) -> None:
    """Plain, tied, soft-capped, scaled up and down: equal at 1e-12 in fp64."""
    options: dict[str, Any] = {"attention": "eager", "label_smoothing": smoothing}
    agree(make(tmp_path, shape, loss="chunked", **options), make(tmp_path, shape, loss="full", **options))


def test_adapters_on_the_body_leave_the_head_frozen_and_chunked(tmp_path: Path) -> None:
    """Only adapters have a gradient, and the same one."""
    torch.manual_seed(0)
    agree(
        make(tmp_path, loss="chunked", method="lora", lora_rank=4),
        make(tmp_path, loss="full", method="lora", lora_rank=4),
    )


def test_an_adapted_head_takes_the_full_loss_and_that_is_said(tmp_path: Path, monkeypatch: Any) -> None:
    """Refused only where "chunked" was typed."""
    monkeypatch.setattr("trainer_backend.tasks.causal_lm.task.CHUNKED_ABOVE", 100)
    warned: list[Any] = []
    options: dict[str, Any] = {"method": "lora", "lora_targets": ("q_proj", "lm_head")}
    assert not scores_in_chunks(make(tmp_path, warned=warned, **options).model())
    assert [code for code, _ in warned] == ["loss-not-chunked"]
    with pytest.raises(UsageError, match=r'task\.loss = "chunked" cannot be used with model'):
        make(tmp_path, loss="chunked", **options).model()


@pytest.mark.parametrize(("above", "codes"), [(100, ["loss-chunked"]), (16_384, [])])
def test_auto_takes_chunks_for_large_vocabularies_only(
    tmp_path: Path, monkeypatch: Any, above: int, codes: list[str]
) -> None:
    """And says so."""
    monkeypatch.setattr("trainer_backend.tasks.causal_lm.task.CHUNKED_ABOVE", above)
    warned: list[Any] = []
    model = make(tmp_path, warned=warned).model()
    assert scores_in_chunks(model) == bool(codes)
    assert [code for code, _ in warned] == codes


def test_a_head_with_something_unknown_after_it_takes_the_full_loss(tmp_path: Path, monkeypatch: Any) -> None:
    """What the configuration does not tell is not guessed."""
    import transformers

    class Doubled(transformers.LlamaForCausalLM):  # type: ignore[misc]  # not typed
        def forward(self, *args: Any, **options: Any) -> Any:
            outputs = super().forward(*args, **options)
            outputs.logits = outputs.logits * 2
            return outputs

    monkeypatch.setattr(
        transformers.AutoModelForCausalLM,
        "from_pretrained",
        lambda source, **_: Doubled.from_pretrained(source, output_loading_info=True),
    )
    task = make(tmp_path, loss="chunked")
    with pytest.raises(UsageError, match="known scale"):
        task.model()


def test_a_copy_of_the_model_scores_with_its_own_head(tmp_path: Path) -> None:
    """As the certificate copies it."""
    task = make(tmp_path, loss="chunked")
    model = task.model()
    other = copy.deepcopy(model).double()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0)
    _, gradients = loss_and_gradients(task, other)
    assert gradients["lm_head.weight"].dtype == torch.float64
    assert all(parameter.grad is None for parameter in model.parameters())
    assert isinstance(other.get_submodule("lm_head"), ScoringHead)


def test_likeliest_tokens_are_counted_in_chunks(tmp_path: Path) -> None:
    """The metric beside the loss is the same, too."""
    in_chunks, full = make(tmp_path, loss="chunked"), make(tmp_path, loss="full")
    train = full.datasets().train
    batch = full.collate([train[index] for index in range(len(train))])
    found = in_chunks.evaluate(in_chunks.model(), batch)["token_accuracy"]
    wanted = full.evaluate(full.model(), batch)["token_accuracy"]
    assert float(found.total) == float(wanted.total)
    assert float(found.total) > 0


def test_what_is_saved_is_the_model_as_it_was(tmp_path: Path) -> None:
    """Plain transformers loads it, with the same weights and the same logits."""
    import transformers

    task = make(tmp_path, loss="chunked")
    model = task.model()
    (saved,) = task.export(model, tmp_path / "export")
    again = transformers.AutoModelForCausalLM.from_pretrained(saved)
    tokens = torch.arange(9)[None]
    assert torch.equal(again(input_ids=tokens).logits, model(input_ids=tokens).logits)


def operands(dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """hidden (r, h), weight (v, h), targets (r,), weights (r,); the first rows have no loss."""
    torch.manual_seed(0)
    hidden = torch.randn(41, 16, dtype=dtype, requires_grad=True)
    weight = torch.randn(300, 16, dtype=dtype, requires_grad=True)
    targets, weights = torch.randint(0, 300, (41,)), torch.rand(41)
    targets[:5], weights[:5] = -100, 0
    return hidden, weight, targets, weights


def test_totals_and_the_head_s_gradient_add_up_in_fp32_under_half_precision() -> None:
    """fp32 weights under bf16 autocast: as exact as one product of all rows, and no half total."""
    hidden, weight, targets, weights = operands(torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        total = chunked_cross_entropy(hidden, weight, None, targets, weights, LogitShape())
        logits = F.linear(hidden, weight)
    full = (F.cross_entropy(logits.float(), targets, reduction="none") * weights).sum()
    assert total.dtype == torch.float32
    torch.testing.assert_close(total, full)
    ours, theirs = (torch.autograd.grad(value, weight)[0] for value in (total, full))
    assert ours.dtype == torch.float32
    assert (ours - theirs).norm() <= 4e-3 * theirs.norm()


def test_fp16_slopes_below_its_smallest_number_are_not_lost() -> None:
    """The loss scale comes with the seed, after the slopes were taken."""
    hidden, weight, targets, weights = operands(torch.float32)
    with torch.autocast("cpu", dtype=torch.float16):
        total = chunked_cross_entropy(hidden * 1e-3, weight, None, targets, weights * 1e-8, LogitShape())
    full = (F.cross_entropy(hidden * 1e-3 @ weight.T, targets, reduction="none") * weights * 1e-8).sum()
    for ours, theirs in zip(
        torch.autograd.grad(total, (hidden, weight)), torch.autograd.grad(full, (hidden, weight)), strict=True
    ):
        assert (ours - theirs).norm() <= 4e-3 * theirs.norm()


def test_a_row_without_loss_may_hold_anything() -> None:
    """NaN in a padded row's hidden state reaches neither the total nor a gradient of the rows that count."""
    hidden, weight, targets, weights = operands(torch.float64)
    total = chunked_cross_entropy(hidden, weight, None, targets, weights, LogitShape())
    torch.testing.assert_close(
        total,
        (F.cross_entropy(hidden @ weight.T, targets, reduction="none") * weights).sum(),
        rtol=1e-12,
        atol=0,
    )


def test_a_second_backward_through_the_same_forward_is_refused() -> None:
    """Its gradients were handed over; nothing wrong is given instead."""
    hidden, weight, targets, weights = operands(torch.float64)
    total = chunked_cross_entropy(hidden, weight, None, targets, weights, LogitShape())
    total.backward(retain_graph=True)  # type: ignore[no-untyped-call]
    with pytest.raises(RuntimeError, match="run the forward again"):
        total.backward()  # type: ignore[no-untyped-call]


def test_without_gradients_none_are_kept() -> None:
    """An evaluation pays for the total only."""
    hidden, weight, targets, weights = operands(torch.float64)
    with torch.no_grad():
        total = chunked_cross_entropy(hidden, weight, None, targets, weights, LogitShape(softcap=5.0))
    assert not total.requires_grad
