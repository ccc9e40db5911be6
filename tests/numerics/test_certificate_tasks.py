"""The certificate finds what in a loss, a model or its data is no sum over samples, and names the remedy."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - torch's own custom

from tests.support.certificates import (
    MadeTask,
    certificate,
    codes,
    cross_entropy,
    images,
    mlp,
    padded,
    sentences,
    token_sum,
    two_terms,
    vectors,
    word_task,
    words_model,
)
from trainer_backend.engine import auxiliary
from trainer_backend.errors import GradaccError
from trainer_backend.tasks import LossTerm
from trainer_backend.verify import sentences as verdict_sentences

CLASS_WEIGHTS = torch.tensor([0.2, 1.0, 3.0])


def entropy(model: nn.Module, batch: Any, **options: Any) -> torch.Tensor:
    """Of classes."""
    return F.cross_entropy(model(batch[0]), batch[1], **options)


def mean_of_weight_one(model: nn.Module, batch: Any) -> LossTerm:
    """A mean that counts as one sample."""
    return LossTerm(entropy(model, batch), 1)


def mean_of_weight_n(model: nn.Module, batch: Any) -> LossTerm:
    """A mean with the count it was divided by."""
    return LossTerm(entropy(model, batch), len(batch[1]))


def own_mean(model: nn.Module, batch: Any) -> LossTerm:
    """A mean that no loss function of torch took."""
    return LossTerm((model(batch[0]) ** 2).mean(), 1)


def class_weighted_mean(model: nn.Module, batch: Any) -> LossTerm:
    """A mean over class weights, times samples."""
    many = len(batch[1])
    return LossTerm(entropy(model, batch, weight=CLASS_WEIGHTS) * many, many)


def token_mean_times_rows(model: nn.Module, batch: Any) -> LossTerm:
    """A mean over tokens, times sentences."""
    logits, targets = model(batch["tokens"]).flatten(0, 1), batch["targets"].flatten()
    rows = len(batch["tokens"])
    return LossTerm(F.cross_entropy(logits, targets, ignore_index=-100) * rows, rows)


def padded_weight(model: nn.Module, batch: Any) -> LossTerm:
    """Padding counts as tokens."""
    return LossTerm(token_sum(model, batch).total, batch["tokens"].numel())


def dice(model: nn.Module, batch: Any) -> LossTerm:
    """Over the whole batch."""
    found = model(batch[0]).softmax(-1)[:, 1]
    truth = (batch[1] == 1).to(found)
    many = len(truth)
    return LossTerm(many * (1 - 2 * (found * truth).sum() / (found.sum() + truth.sum() + 1)), many, "dice")


def in_batch_negatives(model: nn.Module, batch: Any) -> LossTerm:
    """Each sample against all others."""
    left = F.normalize(model(batch[0]))
    right = F.normalize(left + 0.1 * batch[0][:, :3])
    return LossTerm(
        F.cross_entropy(left @ right.T / 0.1, torch.arange(len(left)), reduction="sum"), len(left)
    )


def batch_statistic(model: nn.Module, batch: Any) -> LossTerm:
    """A standard deviation over the batch."""
    given = model(batch[0])
    return LossTerm((given.std(0) * given.mean()).sum() * len(given), len(given))


def by_position(model: nn.Module, batch: Any) -> LossTerm:
    """Later samples weigh more."""
    losses = entropy(model, batch, reduction="none")
    shares = torch.linspace(1, 2, len(losses)).to(losses)
    return LossTerm((losses * shares).sum(), shares.sum())


def without_the_first(model: nn.Module, batch: Any) -> LossTerm:
    """The first sample is forgotten."""
    losses = entropy(model, batch, reduction="none")
    return LossTerm(losses[1:].sum(), len(losses))


def half_term(model: nn.Module, batch: Any) -> list[LossTerm]:
    """A second term in bf16."""
    first = model[0]  # type: ignore[index]
    in_half = F.linear(batch[0].bfloat16(), first.weight.bfloat16()).float()
    return [cross_entropy(model, batch), LossTerm((in_half**2).sum(), len(batch[1]), "half")]


def in_batch_top_k(model: nn.Module, batch: Any) -> LossTerm:
    """Only the harder half of the batch counts."""
    losses = entropy(model, batch, reduction="none")
    return LossTerm(losses.topk(max(1, len(losses) // 2)).values.sum() * 2, len(losses))


def weighted_by_size(model: nn.Module, batch: Any) -> LossTerm:
    """A mean over weights of the samples, times samples."""
    losses, shares = entropy(model, batch, reduction="none"), batch[0].abs().sum(1)
    return LossTerm((losses * shares).sum() / shares.sum() * len(losses), len(losses))


class BatchStandardised(nn.Module):
    """Its hidden values are standardised over the batch, in its own forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 8)
        self.last = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 4) -> (b, 3)."""
        hidden = self.first(x)
        hidden = (hidden - hidden.mean(0)) / (hidden.var(0, unbiased=False) + 1e-5).sqrt()
        given: torch.Tensor = self.last(hidden)
        return given


class AcrossSamples(BatchStandardised):
    """Attention from each sample to all others of its batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 4) -> (b, 3)."""
        hidden = self.first(x)
        given: torch.Tensor = self.last((hidden @ hidden.T / 3).softmax(-1) @ hidden)
        return given


class BatchAsTime(nn.Module):
    """A recurrent net that takes the batch for time: (b, 4) is one sequence to it."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.GRU(4, 5)
        self.last = nn.Linear(5, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """(b, 4) -> (b, 3)."""
        given: torch.Tensor = self.last(self.recurrent(x)[0])
        return given


FAULTY: list[tuple[Callable[[], MadeTask], str]] = [
    (lambda: MadeTask(mlp, mean_of_weight_one, vectors()), "returns-mean"),
    (lambda: MadeTask(mlp, mean_of_weight_n, vectors()), "returns-mean"),
    (lambda: MadeTask(mlp, own_mean, vectors()), "returns-mean"),
    (lambda: MadeTask(mlp, class_weighted_mean, vectors()), "class-weighted-mean"),
    (lambda: word_task(token_mean_times_rows), "other-denominator"),
    (lambda: word_task(padded_weight), "weight-not-additive"),
    (lambda: MadeTask(mlp, dice, vectors()), "ratio"),
    (lambda: MadeTask(mlp, in_batch_negatives, vectors()), "in-batch-negatives"),
    (lambda: MadeTask(mlp, batch_statistic, vectors()), "samples-influence-each-other"),
    (lambda: MadeTask(mlp, in_batch_top_k, vectors()), "samples-influence-each-other"),
    (lambda: MadeTask(mlp, weighted_by_size, vectors()), "ratio"),
    (lambda: MadeTask(BatchStandardised, cross_entropy, vectors()), "model-mixes-samples"),
    (lambda: MadeTask(AcrossSamples, cross_entropy, vectors()), "model-mixes-samples"),
    (lambda: MadeTask(BatchAsTime, cross_entropy, vectors()), "model-mixes-samples"),
    (lambda: MadeTask(mlp, by_position, vectors()), "order"),
    (lambda: MadeTask(mlp, without_the_first, vectors()), "order"),
    (lambda: MadeTask(mlp, half_term, vectors()), "half-precision"),
]


@pytest.mark.parametrize(("make", "code"), FAULTY, ids=[code for _, code in FAULTY])
def test_a_loss_that_is_no_sum_over_samples_is_found_and_named(
    make: Callable[[], MadeTask], code: str
) -> None:
    """Not equal, by its own name, with a remedy in words."""
    report = certificate(make())
    assert report.verdict == "not-equal"
    assert code in codes(report)
    assert not {name for name in codes(report) if name.startswith("engine-")}
    for culprit in report.culprits:
        sentence, remedy = verdict_sentences.culprit(culprit)
        assert sentence.endswith((".", ")"))
        assert remedy.endswith((".", ")", "use_reentrant=False."))


def conv_and_batch_norm() -> nn.Module:
    """(3, 8, 8) -> 3."""
    return nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=0.1), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3)
    )


def test_batch_norm_is_equal_to_its_stated_definition_and_says_the_momentum() -> None:
    """A ghost batch: named by layer, with m' = 1 - (1 - m)^(1/N)."""
    report = certificate(MadeTask(conv_and_batch_norm, cross_entropy, images()), steps=(2,))
    assert report.verdict == "per-micro-batch"
    (culprit,) = report.culprits
    assert (culprit.code, culprit.where) == ("batch-norm", ("1",))
    assert culprit.values["momentum_for_steps"] == pytest.approx(1 - 0.9**0.5)
    assert all(entry.holds for entry in report.comparisons)


def test_a_mean_beside_batch_norm_is_not_excused_by_it() -> None:
    """Both are named, and the verdict is the worse one."""
    report = certificate(MadeTask(conv_and_batch_norm, mean_of_weight_n, images()), steps=(2,))
    assert report.verdict == "not-equal"
    assert codes(report) == {"batch-norm", "returns-mean"}


def test_frozen_batch_norm_is_equal() -> None:
    """With running statistics each sample stands for itself."""

    class Frozen(nn.Sequential):
        def train(self, mode: bool = True) -> Frozen:  # noqa: FBT002 - torch's own
            super().train(mode)
            self[1].eval()
            return self

    def make() -> nn.Module:
        return Frozen(*conv_and_batch_norm().children())

    assert certificate(MadeTask(make, cross_entropy, images())).verdict == "equal"


def balanced(model: nn.Module, batch: Any) -> list[LossTerm]:
    """A load-balancing loss beside the main one."""
    main = cross_entropy(model, batch)
    shares = model(batch[0]).softmax(-1).mean(0)
    return [main, auxiliary((shares * shares).sum() * 3, main, "balance")]


def test_an_auxiliary_loss_is_equal_to_its_stated_definition() -> None:
    """The helper states it; it is named, and is no fault."""
    report = certificate(MadeTask(mlp, balanced, vectors()))
    assert report.verdict == "per-micro-batch"
    assert [culprit.where for culprit in report.culprits] == [("balance",)]
    assert {term.name: term.additive for term in report.terms} == {"loss": True, "balance": False}


def test_a_task_can_state_by_name_what_belongs_to_the_micro_batch() -> None:
    """`per_micro_batch` on the task does what the field of the term does."""
    assert certificate(MadeTask(mlp, dice, vectors(), per_micro_batch=("dice",))).verdict == "per-micro-batch"


def test_stating_one_term_does_not_excuse_another() -> None:
    """A mean stays a fault beside a stated Dice."""

    def both(model: nn.Module, batch: Any) -> list[LossTerm]:
        return [LossTerm(entropy(model, batch), len(batch[1])), dice(model, batch)]

    report = certificate(MadeTask(mlp, both, vectors(), per_micro_batch=("dice",)))
    assert report.verdict == "not-equal"
    assert codes(report) == {"returns-mean", "per-micro-batch-term"}


class Rand(nn.Module):
    """A dropout of one's own, which nothing can switch off."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Some inputs are dropped."""
        given: torch.Tensor = self.layer(x * (torch.rand_like(x) > 0.3))
        return given


class Remembers(Rand):
    """Its output depends on the call before."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden: Any = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """What it gave before is added."""
        given: torch.Tensor = self.layer(x) + self.hidden
        self.hidden = given.detach().mean(0)
        return given


def test_the_module_that_mixes_samples_is_named() -> None:
    """The recurrent layer itself, or the model's own forward between two layers that do not."""
    for make, module in ((BatchAsTime, "recurrent"), (AcrossSamples, "the model's forward")):
        (culprit,) = certificate(MadeTask(make, cross_entropy, vectors()), steps=(2,)).culprits
        assert culprit.where == (module,)
        assert module in verdict_sentences.culprit(culprit)[0]


GENERATOR = torch.Generator().manual_seed(1)


class OwnDropout(nn.Module):
    """A dropout that draws from a generator which no global seed reaches."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)
        self.numbers: Any = {
            "torch": torch.Generator().manual_seed(3),
            "numpy": np.random.default_rng(3),
            "python": random.Random(3),  # noqa: S311
            "module": None,
        }[kind]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Some inputs are dropped."""
        if isinstance(self.numbers, random.Random):
            drawn = torch.tensor([self.numbers.random() for _ in range(x.numel())]).view_as(x)
        elif isinstance(self.numbers, np.random.Generator):
            drawn = torch.from_numpy(self.numbers.random(tuple(x.shape)))
        else:
            drawn = torch.rand(x.shape, generator=self.numbers or GENERATOR)
        given: torch.Tensor = self.layer(x * (drawn > 0.3))
        return given


@pytest.mark.parametrize("kind", ["torch", "numpy", "python", "module"])
def test_dropout_with_a_generator_of_its_own_is_told_as_chance_and_the_generator_named(kind: str) -> None:
    """Whatever library it is of; what a replay cannot take back is remarked on."""
    report = certificate(MadeTask(lambda: OwnDropout(kind), cross_entropy, vectors()), steps=(2,))
    (culprit,) = report.culprits
    assert culprit.code == "random-numbers"
    assert culprit.where == ((f"{__name__}.GENERATOR",) if kind == "module" else ("OwnDropout.numbers",))
    said = {remark.code for remark in report.remarks}
    assert ("generator-out-of-reach" in said) is (kind == "module")


def mix_up(samples: list[Any]) -> list[torch.Tensor]:
    """Inputs, both targets, and the share of the first."""
    inputs, targets = torch.utils.data.default_collate(samples)
    order, share = torch.randperm(len(inputs)), torch.rand(())
    shares = share.expand(len(inputs))
    return [share * inputs + (1 - share) * inputs[order], targets, targets[order], shares]


def mixed_loss(model: nn.Module, batch: Any) -> LossTerm:
    """Cross-entropy against both targets."""
    given = model(batch[0])
    one, other = (F.cross_entropy(given, batch[place], reduction="none") for place in (1, 2))
    return LossTerm((one * batch[3] + other * (1 - batch[3])).sum(), len(given))


def test_mix_up_in_collate_is_named_and_not_called_equal() -> None:
    """Unless the task states that it belongs to the micro-batch; noise for each sample mixes nothing."""
    report = certificate(MadeTask(mlp, mixed_loss, vectors(), mix_up), steps=(2,))
    assert (report.verdict, codes(report)) == ("not-equal", {"collate-mixes-samples"})
    stated = MadeTask(mlp, mixed_loss, vectors(), mix_up, per_micro_batch=("loss",))
    assert certificate(stated, steps=(2,)).verdict == "per-micro-batch"

    def noisy(samples: list[Any]) -> list[torch.Tensor]:
        inputs, targets = torch.utils.data.default_collate(samples)
        return [inputs + 0.1 * torch.randn_like(inputs), targets]

    assert certificate(MadeTask(mlp, cross_entropy, vectors(), noisy), steps=(2,)).verdict == "equal"


@pytest.mark.parametrize("retain", [True, False])
def test_a_backward_in_the_loss_is_named_and_no_fault_of_the_engine(retain: bool) -> None:
    """Refused with its own name, also where the engine's backward could not even run."""

    def own_backward(model: nn.Module, batch: Any) -> LossTerm:
        total = entropy(model, batch, reduction="sum")
        total.backward(retain_graph=retain)  # type: ignore[no-untyped-call]
        return LossTerm(total, len(batch[1]))

    with pytest.raises(GradaccError, match=r"the loss called \.backward\(\) itself"):
        certificate(MadeTask(mlp, own_backward, vectors()), steps=(2,))


def test_the_first_window_of_a_run_is_one_of_the_windows() -> None:
    """Without other samples before it."""
    report = certificate(MadeTask(mlp, cross_entropy, vectors()), steps=(2,))
    assert "first" in {entry.fold for entry in report.comparisons}


def test_dropout_left_on_is_told_as_chance() -> None:
    """Random numbers that no switch reaches: nothing can be proven, and that is said."""
    report = certificate(MadeTask(Rand, cross_entropy, vectors()))
    assert report.verdict == "not-equal"
    assert codes(report) == {"random-numbers"}


def test_state_from_one_micro_batch_to_the_next_is_found() -> None:
    """In the model, and in the task."""
    assert codes(certificate(MadeTask(Remembers, cross_entropy, vectors()))) == {"state"}
    calls = []

    def annealed(model: nn.Module, batch: Any) -> LossTerm:
        calls.append(1)
        main = cross_entropy(model, batch)
        return LossTerm(main.total * (1 + 0.1 * len(calls)), main.weight)

    assert codes(certificate(MadeTask(mlp, annealed, vectors()))) == {"state"}


def test_padding_that_is_not_masked_is_told_as_collating() -> None:
    """A mean over positions sees the padding, so a sample's loss depends on its neighbours' lengths."""

    class MeanOverPositions(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(11, 6)
            self.head = nn.Linear(6, 11)

        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            hidden = self.embedding(tokens)
            given: torch.Tensor = self.head(hidden + hidden.mean(1, keepdim=True))
            return given

    report = certificate(MadeTask(MeanOverPositions, token_sum, sentences(), padded))
    assert report.verdict == "not-equal"
    assert codes(report) == {"collate"}


def test_a_collate_that_draws_lots_is_compared_by_splitting_one_batch() -> None:
    """Masked language modelling masks while it collates: that is no fault."""

    def masking(samples: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        batch = padded(samples)
        kept = torch.rand(batch["targets"].shape) < 0.5
        return batch | {"targets": torch.where(kept, batch["targets"], -100)}

    report = certificate(MadeTask(words_model, token_sum, sentences(), masking))
    assert report.verdict == "equal"
    assert [remark.code for remark in report.remarks] == ["collate-draws-lots"]


def test_a_gradient_that_is_not_finite_is_named_by_layer() -> None:
    """Nothing is compared with NaN."""
    report = certificate(
        MadeTask(mlp, lambda model, batch: LossTerm(model(batch[0]).sum() * float("nan"), 3), vectors())
    )
    assert report.verdict == "not-equal"
    assert codes(report) == {"non-finite"}


def test_a_total_in_half_precision_is_refused_in_words() -> None:
    """The engine would refuse it too; the certificate says which term."""

    def in_half(model: nn.Module, batch: Any) -> LossTerm:
        return LossTerm(cross_entropy(model, batch).total.half(), 3)

    with pytest.raises(GradaccError, match="half precision"):
        certificate(MadeTask(mlp, in_half, vectors()))


def test_samples_without_any_weight_are_refused_in_words() -> None:
    """There is nothing to compare."""

    def nothing(model: nn.Module, batch: Any) -> LossTerm:
        return LossTerm(cross_entropy(model, batch).total * 0, 0)

    with pytest.raises(GradaccError, match="has a weight"):
        certificate(MadeTask(mlp, nothing, vectors()))


def test_two_terms_with_denominators_of_their_own_are_equal() -> None:
    """Tokens and sentences, each over its own."""
    report = certificate(word_task(two_terms))
    assert report.verdict == "equal"
    assert [term.name for term in report.terms] == ["loss", "penalty"]
