"""Whether N is worth it, in words: the noise scale beside the effective batch. No Qt."""

from __future__ import annotations

from typing import Final

import msgspec

from gradacc_gui.run.numbers import count, real
from gradacc_gui.words import tr
from trainer_backend.config import RunConfig
from trainer_backend.noise_scale import Advice, NoiseEstimate, advise
from trainer_backend.optimizer_table import OPTIMIZERS
from trainer_backend.protocol import NoiseScaleMeasured
from trainer_backend.settings import Settings

SGD_LIKE: Final = frozenset({"sgd", "lars"})
"""Optimizers whose steps the noise scale's theory is about."""
ADVICE: Final[dict[str, str]] = {
    "small": "{batch} is small: N of about {steps} would need fewer optimizer steps for few more samples.",
    "right": "{batch} is about right: a larger N would save few steps, a smaller N few samples.",
    "large": "{batch} is more than needed: N of about {steps} would reach a loss with fewer samples.",
}
"""One sentence a verdict."""


class Worth(msgspec.Struct, frozen=True, kw_only=True):
    """What the panel says."""

    scale: str
    """The noise scale with its interval, or why it is not known."""
    advice: str = ""
    """One sentence; empty while the interval is too wide."""
    cost: str = ""
    notes: tuple[str, ...] = ()
    """What limits the advice."""


def worth_of(
    measured: NoiseScaleMeasured | None, settings: Settings | None, config: RunConfig | None
) -> Worth | None:
    """What is known now; None before the first measured window."""
    if measured is None:
        return None
    estimate = NoiseEstimate(
        windows=measured.windows, value=measured.noise_scale, low=measured.noise_scale_low,
        high=measured.noise_scale_high, trace=measured.trace, squared_gradient=measured.squared_gradient,
    )  # fmt: skip
    found = None
    if settings is not None:
        found = advise(
            estimate, effective_batch=settings.effective_batch, samples_a_round=settings.samples_a_round
        )
    if found is None:
        return Worth(scale=_scale(estimate), notes=(tr("Too uncertain for advice so far."),))
    return Worth(scale=_scale(estimate), advice=_sentence(found), cost=_cost(found), notes=_notes(config))


def _scale(estimate: NoiseEstimate) -> str:
    if estimate.low is None:
        return tr("Not known yet, after {windows} measured windows.").format(windows=count(estimate.windows))
    if estimate.high is None or estimate.value is None:
        return tr("At least {low} samples").format(low=_rounded(estimate.low))
    return tr("About {value} samples ({low} to {high})").format(
        value=_rounded(estimate.value), low=_rounded(estimate.low), high=_rounded(estimate.high)
    )


def _rounded(samples: float) -> str:
    """Two figures: more would promise more than the interval does."""
    return count(float(f"{samples:.2g}")) if samples >= 10 else real(samples, 2)


def _sentence(advice: Advice) -> str:
    batch = tr("An effective batch of {size}").format(size=count(advice.effective_batch))
    return tr(ADVICE[advice.verdict]).format(batch=batch, steps=count(advice.accumulation_steps))


def _cost(advice: Advice) -> str:
    text = tr("It takes {steps}× the fewest possible steps and {samples}× the fewest possible samples.")
    return text.format(steps=real(advice.step_ratio, 2), samples=real(advice.sample_ratio, 2))


def _notes(config: RunConfig | None) -> tuple[str, ...]:
    notes = [tr("A larger N makes each step longer: it buys a larger batch, not speed.")]
    if config is not None and config.optimizer.name not in SGD_LIKE:
        notes.append(
            tr("An indication only: the theory is for SGD, not for {name}.").format(
                name=OPTIMIZERS[config.optimizer.name].title
            )
        )
    if config is not None and getattr(config.task, "method", "full") != "full":
        notes.append(tr("LoRA tolerates large batches less than full training does."))
    return tuple(notes)
