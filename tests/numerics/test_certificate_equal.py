"""The certificate accuses nobody who is right, and says so where it can know less than usual."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own custom
from torch.utils.checkpoint import checkpoint

from tests.support.certificates import (
    MadeTask,
    certificate,
    cross_entropy,
    images,
    mlp,
    padded,
    plain_task,
    sentences,
    token_sum,
    vectors,
    word_task,
)
from trainer_backend.engine.recompute import checkpoint_modules
from trainer_backend.kinds import LanguageModelTask
from trainer_backend.tasks import LossTerm
from trainer_backend.tasks.language_model import GPT


class RoundsInside(nn.Module):
    """A norm that insists on fp32, as many language models have."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.scale = nn.Parameter(torch.ones(8))
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """RMS norm in fp32."""
        hidden = self.first(x)
        wide = hidden.to(torch.float32)
        normed = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)
        given: torch.Tensor = self.last(self.scale * normed.to(hidden.dtype))
        return given


class TrulyFp32(RoundsInside):
    """Rounds to fp32 in a way that nothing can widen."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Through a buffer that stays fp32."""
        hidden = self.first(x)
        buffer = torch.empty(hidden.shape, dtype=torch.half).to(torch.float32, copy=True)
        narrow = torch.empty_strided(buffer.size(), buffer.stride(), dtype=torch.half).type(
            "torch.FloatTensor"
        )
        narrow = narrow.copy_(hidden)
        given: torch.Tensor = self.last(self.scale * narrow.to(hidden.dtype))
        return given


class ZeroGradients(nn.Module):
    """Attention whose key bias has a gradient of exactly nothing, a dead unit, and an unused layer."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, dropout=0.3, batch_first=True)
        self.dead = nn.Linear(4, 4)
        nn.init.constant_(self.dead.bias, -100.0)
        self.head = nn.Linear(4, 3)
        self.unused = nn.Linear(4, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 4) as a sequence of 2 x (b, 4)."""
        sequence = torch.stack([x, x.flip(-1)], dim=1)
        mixed, _ = self.attention(sequence, sequence, sequence, need_weights=False)
        given: torch.Tensor = self.head(mixed.mean(1) + F.relu(self.dead(x)))
        return given


class Tied(nn.Module):
    """Embedding and head are one weight; most rows are never used."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 6)
        self.head = nn.Linear(6, 50, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of each token."""
        given: torch.Tensor = self.head(torch.tanh(self.embedding(tokens)))
        return given


class Lstm(nn.Module):
    """Two layers with dropout between."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.lstm = nn.LSTM(6, 6, num_layers=2, dropout=0.5, batch_first=True)
        self.head = nn.Linear(6, 11)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits of each token."""
        hidden, _ = self.lstm(self.embedding(tokens))
        given: torch.Tensor = self.head(F.dropout(hidden, 0.2, self.training))
        return given


class Checkpointed(nn.Module):
    """Activations are computed again in the backward, in torch's old or new way."""

    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.dropout = nn.Dropout(0.3)
        self.reentrant = reentrant

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The middle is recomputed, dropout included."""

        def inner(hidden: torch.Tensor) -> torch.Tensor:
            given: torch.Tensor = torch.tanh(self.middle(self.dropout(hidden)))
            return given

        given: torch.Tensor = self.last(checkpoint(inner, self.first(x), use_reentrant=self.reentrant))
        return given


class Cancels(nn.Module):
    """A single scalar whose gradient is a difference of large numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(1.0))
        self.shift = nn.Parameter(torch.tensor(0.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sign by sign, nearly nothing is left."""
        return self.scale * 1e4 * x + self.shift


class DropPath(nn.Module):
    """Stochastic depth as other libraries write it."""

    def __init__(self) -> None:
        super().__init__()
        self.drop_prob = 0.5
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Whole rows are dropped by chance."""
        given: torch.Tensor = self.layer(x)
        if self.training and self.drop_prob:
            given = given * given.new_empty((len(x), 1)).bernoulli_(1 - self.drop_prob)
        return given


def recomputed() -> nn.Module:
    """A module whose forward was set on it."""
    model = mlp()
    checkpoint_modules(model, ["0"])
    return model


def cancelling(model: nn.Module, batch: Any) -> LossTerm:
    """Large terms of both signs."""
    return LossTerm(model(batch[0]).sum(), len(batch[1]))


def paired() -> list[tuple[torch.Tensor, int]]:
    """Each sample with its negative, but for one in a hundred thousand."""
    return [(sign * x * (1 + 1e-5 * (sign > 0)), y) for x, y in vectors(12) for sign in (1, -1)]


def some_without_tokens(model: nn.Module, batch: Any) -> LossTerm:
    """Rows of an even length have no valid token."""
    lengths = (batch["tokens"] > 0).sum(1, keepdim=True)
    return token_sum(model, batch | {"targets": torch.where(lengths % 2 == 1, batch["targets"], -100)})


def gpt() -> nn.Module:
    """The built-in one, small."""
    return GPT(LanguageModelTask(context_length=12, layers=2, width=16, heads=2, dropout=0.1))


def gpt_samples() -> list[torch.Tensor]:
    """12 bytes and the next one."""
    generator = torch.Generator().manual_seed(3)
    return list(torch.randint(0, 256, (24, 13), generator=generator))


def gpt_loss(model: nn.Module, batch: torch.Tensor) -> LossTerm:
    """As the built-in kind has it: logits made fp32, then summed."""
    logits = model(batch[:, :-1]).float()
    total = F.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum")
    return LossTerm(total, batch[:, 1:].numel())


def class_weighted(model: nn.Module, batch: Any) -> LossTerm:
    """With its own denominator, summed in fp32."""
    shares = torch.tensor([0.2, 1.0, 3.0])
    total = F.cross_entropy(model(batch[0]), batch[1], weight=shares, reduction="sum", label_smoothing=0.1)
    return LossTerm(total, shares[batch[1]].sum())


def group_norm() -> nn.Module:
    """Convolutions without statistics over the batch."""
    return nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Dropout2d(0.2), nn.Flatten(), nn.Linear(288, 3)
    )


RIGHT: dict[str, Callable[[], MadeTask]] = {
    "linear": lambda: MadeTask(lambda: nn.Linear(4, 3), cross_entropy, vectors()),
    "dropout": plain_task,
    "ragged tokens": word_task,
    "gpt": lambda: MadeTask(gpt, gpt_loss, gpt_samples()),
    "group norm": lambda: MadeTask(group_norm, cross_entropy, images()),
    "layer rounds to fp32": lambda: MadeTask(RoundsInside, cross_entropy, vectors()),
    "layer is fp32 whatever happens": lambda: MadeTask(TrulyFp32, cross_entropy, vectors()),
    "zero gradients": lambda: MadeTask(ZeroGradients, cross_entropy, vectors()),
    "tied weights, unused rows": lambda: MadeTask(Tied, token_sum, sentences(), padded),
    "lstm": lambda: MadeTask(Lstm, token_sum, sentences(), padded),
    "checkpointing": lambda: MadeTask(lambda: Checkpointed(reentrant=False), cross_entropy, vectors()),
    "reentrant checkpointing": lambda: MadeTask(
        lambda: Checkpointed(reentrant=True), cross_entropy, vectors()
    ),
    "checkpointing by name": lambda: MadeTask(recomputed, cross_entropy, vectors()),
    "cancelling": lambda: MadeTask(Cancels, cancelling, paired()),
    "drop path": lambda: MadeTask(DropPath, cross_entropy, vectors()),
    "class weights in fp32": lambda: MadeTask(mlp, class_weighted, vectors()),
    "rows without a valid token": lambda: word_task(some_without_tokens),
    "frozen part": lambda: MadeTask(
        lambda: nn.Sequential(nn.Linear(4, 8).requires_grad_(False), nn.Tanh(), nn.Linear(8, 3)),
        cross_entropy,
        vectors(),
    ),
    "weight norm": lambda: MadeTask(
        lambda: nn.Sequential(
            nn.utils.parametrizations.weight_norm(nn.Linear(4, 8)), nn.Tanh(), nn.Linear(8, 3)
        ),
        cross_entropy,
        vectors(),
    ),
    "transformer layer": lambda: MadeTask(
        lambda: nn.Sequential(
            nn.Embedding(11, 8),
            nn.TransformerEncoderLayer(8, 2, 16, dropout=0.4, batch_first=True),
            nn.Linear(8, 11),
        ),
        lambda model, batch: token_sum(model, {key: value[:, :2] for key, value in batch.items()}),
        sentences(),
        padded,
    ),
}


@pytest.mark.filterwarnings("ignore:.*reentrant:UserWarning")
@pytest.mark.parametrize("name", RIGHT)
def test_a_right_model_is_never_accused(name: str) -> None:
    """Equal, with no culprit."""
    report = certificate(RIGHT[name](), steps=(2, 4))
    assert not report.culprits
    assert report.verdict == "equal"


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("name", ["dropout", "gpt", "group norm", "zero gradients"])
def test_half_precision_is_held_to_its_own_limit(name: str, precision: str) -> None:
    """Autocast, and a loss scale in fp16."""
    report = certificate(RIGHT[name](), precision=precision, steps=(4,))
    assert report.verdict == "equal"
    assert {entry.precision for entry in report.comparisons} == {"fp64", precision}


def test_a_model_with_half_weights_is_held_to_what_these_can_do() -> None:
    """bf16 parameters, fp32 masters and gradients."""

    def loss(model: nn.Module, batch: Any) -> LossTerm:
        logits = model(batch[0].to(next(model.parameters()).dtype)).float()
        return LossTerm(F.cross_entropy(logits, batch[1], reduction="sum"), len(batch[1]))

    report = certificate(MadeTask(lambda: mlp().bfloat16(), loss, vectors()))
    assert report.verdict == "equal"


@settings(max_examples=8)
@given(
    seed=st.integers(0, 2**20),
    width=st.integers(1, 9),
    samples=st.integers(4, 12),
    scale=st.sampled_from([1e-8, 1.0, 1e6]),
)
def test_no_random_right_task_is_accused(seed: int, width: int, samples: int, scale: float) -> None:
    """Any data, any width, losses of any size."""
    generator = torch.Generator().manual_seed(seed)
    data = [(scale * torch.randn(width, generator=generator), float(index)) for index in range(samples + 3)]

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(width, 3), nn.SiLU(), nn.Linear(3, 1))

    def loss(model: nn.Module, batch: Any) -> LossTerm:
        weight = 1 + batch[1] % 3
        return LossTerm((weight * (model(batch[0])[:, 0] - batch[1]) ** 2).sum(), weight.sum())

    report = certificate(MadeTask(model, loss, data), samples=samples, steps=(2, 3))
    assert not report.culprits
    assert report.verdict == "equal"


def test_where_fp64_cannot_run_fp32_and_its_floor_are_the_reference() -> None:
    """A kernel that refuses fp64: said, and still a verdict."""

    class NoDouble(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.weight.dtype == torch.float64:
                message = "kernel not implemented for Double"
                raise NotImplementedError(message)
            return super().forward(x)

    report = certificate(MadeTask(lambda: NoDouble(4, 3), cross_entropy, vectors()))
    assert (report.verdict, report.reference) == ("equal", "fp32")
    (remark,) = report.remarks
    assert remark.code == "fp64-cannot-run"
    assert "kernel not implemented" in str(remark.values["reason"])
    assert all(entry.limit >= 1e-5 for entry in report.comparisons)


def test_a_batch_that_cannot_be_split_is_told_and_is_no_fault() -> None:
    """Only recovery from out of memory needs `split`."""

    def odd(samples: list[Any]) -> dict[str, Any]:
        x = torch.stack([sample[0] for sample in samples])
        return {"x": x, "y": torch.tensor([sample[1] for sample in samples]), "table": torch.ones(7)}

    def loss(model: nn.Module, batch: Any) -> LossTerm:
        return LossTerm(F.cross_entropy(model(batch["x"]), batch["y"], reduction="sum"), len(batch["y"]))

    report = certificate(MadeTask(mlp, loss, vectors(), odd))
    assert report.verdict == "equal"
    assert [remark.code for remark in report.remarks] == ["cannot-split"]


def test_where_the_large_batch_does_not_fit_partitions_are_compared() -> None:
    """More than 6 samples at once raise out of memory: 6 directly, 12 between two cuts and two orders."""

    def loss(model: nn.Module, batch: Any) -> LossTerm:
        if len(batch[1]) > 6:
            message = "CUDA out of memory. Tried to allocate 20.00 MiB"
            raise torch.OutOfMemoryError(message)
        return cross_entropy(model, batch)

    report = certificate(MadeTask(mlp, loss, vectors()), steps=(2, 3))
    assert report.verdict == "equal"
    assert (report.samples, report.samples_partition) == (6, 12)
    assert "large-batch-does-not-fit" in {remark.code for remark in report.remarks}
    assert sum(report.comparisons[-1].sizes) == 12


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="RLIMIT_AS is Linux's")
def test_a_real_allocation_failure_ends_in_a_certificate(tmp_path: Path) -> None:
    """Under RLIMIT_AS the allocator itself refuses the large batch."""
    script = tmp_path / "limited.py"
    script.write_text(
        textwrap.dedent(
            """
            import resource, torch
            from torch import nn
            from tests.support.certificates import MadeTask, certificate
            from trainer_backend.tasks import LossTerm

            torch.set_num_threads(1)
            WIDE = 1 << 20  # 8 MiB a sample in fp64, several times over

            class Wide(nn.Module):
                def __init__(self):
                    super().__init__()
                    self.weight = nn.Parameter(torch.ones(4))

                def forward(self, x):
                    wide = x[:, :1] * self.weight[0] + torch.linspace(0, 1, WIDE)
                    return (wide * self.weight[1] + (wide * self.weight[2]).sin()).mean(1) * self.weight[3]

            def loss(model, batch):
                return LossTerm(model(batch).sum(), len(batch))

            def collate(samples):
                return torch.stack(samples)

            data = [torch.full((1,), float(index)) for index in range(14)]
            task = MadeTask(Wide, loss, data, collate)
            certificate(MadeTask(lambda: nn.Linear(1, 1), loss, data, collate), steps=(2,))  # warm
            used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (used + (300 << 20), resource.RLIM_INFINITY))
            report = certificate(task, steps=(2,), samples=12)
            print(report.verdict, report.samples, report.samples_partition)
            """
        ),
        encoding="utf-8",
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=100, check=False,
        cwd=root, env={"PYTHONPATH": str(root), "PATH": "", "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1",
             "MALLOC_MMAP_THRESHOLD_": "65536"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    verdict, samples, partition = done.stdout.split()
    assert verdict == "equal"
    assert int(samples) < 12 == int(partition)
