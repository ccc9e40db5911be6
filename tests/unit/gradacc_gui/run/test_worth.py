"""What the panel about N says, and when it says nothing."""

from __future__ import annotations

import msgspec
import pytest

from gradacc_gui.run.worth import worth_of
from trainer_backend.config import RunConfig
from trainer_backend.protocol import NoiseScaleMeasured
from trainer_backend.settings import Settings

MEASURED = NoiseScaleMeasured(
    step=100, samples_seen=3200, tokens_seen=0, micro_batches=4, effective_batch=32, trace=1.0,
    squared_gradient=0.01, windows=50, noise_scale=100.0, noise_scale_low=80.0, noise_scale_high=130.0,
)  # fmt: skip


def settings(steps: int) -> Settings:
    """Micro-batches of 8."""
    return Settings(accumulation_steps=steps, micro_batch_size=8)


def test_nothing_is_said_before_a_window_was_measured() -> None:
    """The panel stays hidden."""
    assert worth_of(None, settings(4), None) is None


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        (1, "An effective batch of 8 is small: N of about 12 would need fewer optimizer steps"),
        (8, "An effective batch of 64 is about right"),
        (64, "An effective batch of 512 is more than needed: N of about 12 would reach a loss"),
    ],
)
def test_one_sentence_of_advice(steps: int, words: str) -> None:
    """It names the batch, and the N to try."""
    worth = worth_of(MEASURED, settings(steps), None)
    assert worth is not None
    assert worth.scale == "About 100 samples (80 to 130)"  # two figures, not three
    assert worth.advice.startswith(words)


@pytest.mark.parametrize(
    ("low", "high", "value", "words"),
    [
        (40.0, 400.0, 100.0, "About 100 samples (40 to 400)"),
        (40.0, None, 90.0, "At least 40 samples"),
        (None, None, 90.0, "Not known yet, after 50 measured windows."),
    ],
)
def test_no_advice_while_the_interval_is_wide(
    low: float | None, high: float | None, value: float, words: str
) -> None:
    """What is known is shown, and that it is too uncertain."""
    measured = msgspec.structs.replace(
        MEASURED, noise_scale=value, noise_scale_low=low, noise_scale_high=high
    )
    worth = worth_of(measured, settings(4), None)
    assert worth is not None
    assert (worth.scale, worth.advice) == (words, "")
    assert worth.notes == ("Too uncertain for advice so far.",)


def test_for_adam_it_is_an_indication_and_for_sgd_it_is_not() -> None:
    """The theory is SGD's."""
    config = RunConfig()
    worth = worth_of(MEASURED, settings(8), config)
    assert worth is not None
    assert any("for SGD, not for AdamW" in note for note in worth.notes)
    sgd = msgspec.structs.replace(config, optimizer=msgspec.structs.replace(config.optimizer, name="sgd"))
    worth = worth_of(MEASURED, settings(8), sgd)
    assert worth is not None
    assert not any("SGD" in note for note in worth.notes)
