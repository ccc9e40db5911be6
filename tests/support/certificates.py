"""Right and wrong tasks and engines, for the certificate to tell apart.

Data: 24 samples; a ragged sample is (tokens, targets) of its own length, padded by `collate`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own custom

from tests.support.engine_faults import engine_faults
from trainer_backend.engine.batches import split
from trainer_backend.engine.terms import read_terms
from trainer_backend.tasks import Datasets, LossTerm
from trainer_backend.verify.certificate import certify
from trainer_backend.verify.culprits import DiagnoseEngine
from trainer_backend.verify.probe import trainers_engine
from trainer_backend.verify.report import VerifyReport
from trainer_backend.verify.subject import Subject

Terms = LossTerm | list[LossTerm]


class MadeTask:
    """A task from a function that makes the model, samples, and a loss."""

    def __init__(
        self,
        model: Callable[[], nn.Module],
        loss: Callable[[nn.Module, Any], Terms],
        samples: Sequence[Any],
        collate: Callable[[list[Any]], Any] | None = None,
        **more: Any,
    ) -> None:
        self.make_model = model
        self.make_loss = loss
        self.samples = list(samples)
        self.collate = collate or torch.utils.data.default_collate
        for name, value in more.items():
            setattr(self, name, value)

    def model(self) -> nn.Module:
        """A fresh model, the same each time."""
        torch.manual_seed(0)
        return self.make_model()

    def datasets(self) -> Datasets:
        """The samples."""
        return Datasets(train=self.samples)

    def loss(self, model: nn.Module, batch: Any) -> Terms:
        """The given loss."""
        return self.make_loss(model, batch)


def certificate(
    task: MadeTask,
    *,
    engine: Any = trainers_engine,
    diagnose: DiagnoseEngine = engine_faults,
    steps: Sequence[int] = (2, 4),
    precision: Any = "fp32",
    samples: int = 12,
) -> VerifyReport:
    """Certify a made task on the CPU; what an engine does wrong is told in full."""
    subject = Subject(
        task, task.samples[:samples], task.samples[samples : samples + 6], collate=task.collate,
        device=torch.device("cpu"), precision=precision,
    )  # fmt: skip
    return certify(subject, steps=steps, engine=engine, diagnose=diagnose)


def codes(report: VerifyReport) -> set[str]:
    """What was found."""
    return {culprit.code for culprit in report.culprits}


# ------------------------------------------------------------------------------------ data and models


def vectors(count: int = 24, width: int = 4, classes: int = 3) -> list[tuple[torch.Tensor, int]]:
    """(width,) fp32 and a class."""
    generator = torch.Generator().manual_seed(7)
    return [
        (torch.randn(width, generator=generator), int(torch.randint(classes, (1,), generator=generator)))
        for _ in range(count)
    ]


def images(count: int = 24) -> list[tuple[torch.Tensor, int]]:
    """(3, 8, 8) fp32 and a class of 3."""
    generator = torch.Generator().manual_seed(8)
    return [
        (torch.randn(3, 8, 8, generator=generator), int(torch.randint(3, (1,), generator=generator)))
        for _ in range(count)
    ]


def sentences(count: int = 24, vocabulary: int = 11) -> list[torch.Tensor]:
    """Token ids of 2 to 9 tokens."""
    generator = torch.Generator().manual_seed(9)
    return [
        torch.randint(
            1, vocabulary, (int(torch.randint(2, 10, (1,), generator=generator)),), generator=generator
        )
        for _ in range(count)
    ]


def padded(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
    """Tokens (b, s) padded with 0; targets are the tokens themselves, padding is -100."""
    tokens = nn.utils.rnn.pad_sequence(samples, batch_first=True)
    return {"tokens": tokens, "targets": torch.where(tokens > 0, tokens, -100)}


def mlp() -> nn.Module:
    """4 -> 3 with dropout between."""
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 3))


def words_model() -> nn.Module:
    """Token by token: embedding and head."""
    return nn.Sequential(nn.Embedding(11, 6), nn.Tanh(), nn.Linear(6, 11))


def cross_entropy(model: nn.Module, batch: Any) -> LossTerm:
    """Sum over samples."""
    x, target = batch
    return LossTerm(F.cross_entropy(model(x), target, reduction="sum"), len(target))


def token_sum(model: nn.Module, batch: Any) -> LossTerm:
    """Sum over valid tokens, as it should be."""
    logits, targets = model(batch["tokens"]), batch["targets"]
    total = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum", ignore_index=-100)
    return LossTerm(total, int((targets != -100).sum()))


def plain_task(**more: Any) -> MadeTask:
    """A right task."""
    return MadeTask(mlp, cross_entropy, vectors(), **more)


def word_task(loss: Callable[[nn.Module, Any], Terms] = token_sum, **more: Any) -> MadeTask:
    """A task over ragged sentences."""
    return MadeTask(words_model, loss, sentences(), padded, **more)


def two_terms(model: nn.Module, batch: Any) -> list[LossTerm]:
    """Two terms with denominators of their own: tokens, and sentences."""
    main = token_sum(model, batch)
    lengths = (batch["tokens"] > 0).sum(1)
    embedded = model[0](batch["tokens"]) * (batch["tokens"] > 0)[..., None]  # type: ignore[index]
    penalty = (embedded.sum(1) ** 2).sum(-1) / lengths
    return [main, LossTerm(penalty.sum(), len(lengths), "penalty")]


# -------------------------------------------------------------------------------------- broken engines


class LoopEngine:
    """The usual hand-written loop in sum form, right; the broken ones override one step of it."""

    def __init__(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, loss: Any, *, steps: int, **options: Any
    ) -> None:
        self.model, self.optimizer, self.loss = model, optimizer, loss
        self.steps = steps
        self.options = options
        self.max_grad_norm: float | None = None

    def window(self, batches: Iterable[Any]) -> Any:
        """One optimizer step; out of memory halves the micro-batches and starts again."""
        listed = list(batches)
        try:
            return self.attempt(listed)
        except torch.OutOfMemoryError:
            self.forget()
            cut = self.options.get("split") or split
            return self.attempt([part for batch in listed for part in cut(batch, 2)])

    def forget(self) -> None:
        """Before a replay."""
        self.optimizer.zero_grad()

    def attempt(self, listed: list[Any]) -> Any:
        """All micro-batches, then the border."""
        totals: dict[str, float] = {}
        weights: dict[str, float] = {}
        for batch in listed:
            for term in read_terms(self.loss(self.model, batch)):
                totals[term.name] = totals.get(term.name, 0.0) + term.total.item()
                weights[term.name] = weights.get(term.name, 0.0) + float(term.weight)
        for index, batch in enumerate(listed):
            self.micro_batch(index, batch, weights, len(listed))
        self.border(weights, len(listed))
        norm = self.clip()
        self.optimizer.step()
        self.empty()
        return self.result(totals, weights, norm, sum(len(_first(batch)) for batch in listed))

    def micro_batch(self, _index: int, batch: Any, weights: dict[str, float], many: int) -> None:
        """Forward and backward of one micro-batch."""
        self.objective(read_terms(self.loss(self.model, batch)), weights, many).backward()  # type: ignore[no-untyped-call]

    def objective(self, terms: Sequence[LossTerm], weights: dict[str, float], _many: int) -> torch.Tensor:
        """What the backward runs on."""
        return sum((term.total / weights[term.name] for term in terms), torch.zeros(()))

    def border(self, weights: dict[str, float], many: int) -> None:
        """Behind the last micro-batch."""

    def clip(self) -> float:
        """Norm before clipping."""
        bound = float("inf") if self.max_grad_norm is None else self.max_grad_norm
        return float(nn.utils.clip_grad_norm_(self.model.parameters(), bound))

    def empty(self) -> None:
        """No gradient is left."""
        self.optimizer.zero_grad()

    def result(self, totals: dict[str, float], weights: dict[str, float], norm: float, samples: int) -> Any:
        """What the window reports."""
        loss = sum(totals[name] / weights[name] for name in totals)
        return SimpleNamespace(
            loss=loss, weight=weights[next(iter(weights))], gradient_norm=norm, samples=samples, skipped=""
        )


def _first(batch: Any) -> Any:
    if isinstance(batch, dict):
        return next(iter(batch.values()))
    return batch[0] if isinstance(batch, list | tuple) else batch
