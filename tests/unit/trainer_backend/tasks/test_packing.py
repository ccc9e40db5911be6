"""Several samples in a row: nearly full rows, exact sums, and refused where samples would see each other."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.language_models import Shape, write_json_lines, write_model
from trainer_backend.errors import UsageError
from trainer_backend.kinds.causal_lm import CausalLMData, CausalLMTask
from trainer_backend.tasks.causal_lm import CausalLM
from trainer_backend.tasks.causal_lm.layout import packed_groups
from trainer_backend.tasks.causal_lm.probes import in_fp32
from trainer_backend.verify.torch_modes import ControlledRun

SAMPLES = [{"prompt": "this is", "completion": " a text" * count} for count in (1, 6, 2, 9, 3, 1, 4, 2) * 2]


def make(folder: Path, shape: Shape, **options: Any) -> CausalLM:
    """The task on a model of this shape, which is written once."""
    if not (folder / "model").exists():
        write_model(folder / "model", shape)
        write_json_lines(folder / "data.jsonl", SAMPLES)
    settings: dict[str, Any] = {"model": "model", "method": "full", "max_length": 64} | options
    return CausalLM(
        CausalLMTask(**settings), CausalLMData(path="data.jsonl", validation_fraction=0.1), folder=folder
    )


def gradient(task: CausalLM, model: torch.nn.Module, micro_batch_size: int) -> torch.Tensor:
    """Of all training items over their weight, parameters end to end."""
    train = task.datasets().train
    items = [train[index] for index in range(len(train))]
    model.zero_grad()
    weight = 0.0
    for begin in range(0, len(items), micro_batch_size):
        batch = task.collate(items[begin : begin + micro_batch_size])
        with ControlledRun(widen=True):  # some attentions ask for an fp32 softmax
            terms = list(task.loss(model, batch))
        terms[0].total.backward()  # type: ignore[no-untyped-call]
        weight += task.weights(batch)["loss"]
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]) / weight


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("loss", ["full", "chunked"])
@pytest.mark.parametrize("shape", ["llama", "gpt2"])
def test_packed_rows_have_the_gradient_of_the_samples_apart(
    tmp_path: Path, shape: Shape, attention: str, loss: str
) -> None:
    """Two rows a micro-batch, at 1e-12 in fp64."""
    packed = make(tmp_path, shape, layout="packing", attention=attention, loss=loss)
    model = packed.model().double()
    rows = packed.datasets().train
    assert len(rows) > 2
    assert any(len(rows[index]) > 1 for index in range(len(rows)))
    alone = make(tmp_path, shape, attention=attention)
    ours, right = gradient(packed, model, 2), gradient(alone, model, 1)
    assert (ours - right).norm() <= 1e-12 * right.norm()


def test_padding_at_the_end_changes_no_gradient(tmp_path: Path) -> None:
    """Without a mask: a sliding window that is shorter than the padding had NaN under one in fp64."""
    task = make(tmp_path, "gemma2", attention="eager")
    model: Any = task.model().double()
    for layer in model.model.layers:
        layer.self_attn.sliding_window = 4
    model.config.sliding_window = 4
    together, alone = gradient(task, model, 7), gradient(task, model, 1)
    assert (together - alone).norm() <= 1e-12 * alone.norm()


def test_a_recurrent_model_is_not_packed(tmp_path: Path) -> None:
    """Its state runs on from sample to sample."""
    with pytest.raises(UsageError, match=r'task\.layout = "packing": model '):
        make(tmp_path, "mamba", layout="packing").model()
    make(tmp_path, "mamba").model()


def test_a_model_that_lets_samples_see_each_other_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positions that are taken and not used."""
    import transformers

    class Forgetful(transformers.LlamaForCausalLM):  # type: ignore[misc]  # not typed
        def forward(self, position_ids: Any = None, **options: Any) -> Any:
            del position_ids
            return super().forward(**options)

    monkeypatch.setattr(
        transformers.AutoModelForCausalLM,
        "from_pretrained",
        lambda source, **_: Forgetful.from_pretrained(source, output_loading_info=True),
    )
    with pytest.raises(UsageError, match="model lets packed samples see each other"):
        make(tmp_path, "llama", layout="packing").model()


def test_half_weights_are_looked_at_in_fp32_and_are_the_same_bits_afterwards() -> None:
    """Also where two names share one tensor."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)).bfloat16()
    model[1].weight = model[0].weight
    before = [parameter.clone() for parameter in model.parameters()]
    with in_fp32(model):
        assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
        assert model[1].weight is model[0].weight
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), before, strict=True))
    assert {parameter.dtype for parameter in model.parameters()} == {torch.bfloat16}


def test_rows_are_nearly_full_hold_every_sample_once_and_follow_the_seed() -> None:
    """Best-fit decreasing: above 99 % where lengths allow."""
    draw = random.Random(3)  # noqa: S311 - not for secrets
    lengths = [min(512, int(draw.lognormvariate(4.5, 1)) + 1) for _ in range(5000)]
    rows = packed_groups(lengths, 512, seed=5)
    assert Counter(number for row in rows for number in row) == Counter(range(5000))
    assert max(sum(lengths[number] for number in row) for row in rows) <= 512
    assert sum(lengths) >= 0.99 * 512 * len(rows)
    assert rows == packed_groups(lengths, 512, seed=5)
    assert rows != packed_groups(lengths, 512, seed=6)
    firsts = [max(lengths[number] for number in row) for row in rows]
    assert firsts != sorted(firsts, reverse=True)
