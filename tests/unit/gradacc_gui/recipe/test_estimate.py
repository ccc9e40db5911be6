"""What a configuration amounts to, against a count by hand and against the real model."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gradacc_gui.recipe.estimate import in_steps, parameters, samples_for, steps_for, totals
from trainer_backend.config import AccumulationPoint, AccumulationSection, RunConfig, RunSection
from trainer_backend.kinds import LanguageModelTask


def config_of(micro_batch: int, steps: int, points: list[tuple[int, int]]) -> RunConfig:
    """A run with a schedule of N."""
    schedule = tuple(AccumulationPoint(from_sample=sample, steps=count) for sample, count in points)
    return RunConfig(
        run=RunSection(epochs=1),
        accumulation=AccumulationSection(
            micro_batch_size=micro_batch, gradient_accumulation_steps=steps, schedule=schedule
        ),
    )


def windows(config: RunConfig) -> list[int]:
    """Samples seen after each of the first windows, counted one by one."""
    seen, ends = 0, []
    for _ in range(60):
        count = config.accumulation.gradient_accumulation_steps or 1
        for point in config.accumulation.schedule:
            if point.start <= seen:
                count = point.steps_at(config.accumulation.micro_batch_size)
        seen += count * config.accumulation.micro_batch_size
        ends.append(seen)
    return ends


RISING = st.lists(
    st.tuples(st.integers(0, 300), st.integers(1, 9)), max_size=4, unique_by=lambda point: point[0]
).map(sorted)


@given(st.integers(1, 7), st.integers(1, 9), RISING, st.integers(1, 60))
def test_samples_of_so_many_windows_follow_the_schedule_of_n(
    micro_batch: int, steps: int, points: list[tuple[int, int]], count: int
) -> None:
    """A window that started under one N is finished under it."""
    config = config_of(micro_batch, steps, points)
    assert samples_for(config, count) == windows(config)[count - 1]


@given(st.integers(1, 7), st.integers(1, 9), RISING, st.integers(1, 60))
def test_windows_that_so_many_samples_need_follow_the_schedule_of_n(
    micro_batch: int, steps: int, points: list[tuple[int, int]], samples: int
) -> None:
    """The last window may be short."""
    config = config_of(micro_batch, steps, points)
    ends = windows(config)
    assert steps_for(config, samples) == next(place for place, end in enumerate(ends, 1) if end >= samples)


def test_the_length_of_epochs_is_known_only_with_the_data() -> None:
    """And then it is an estimate, and says so."""
    config = config_of(8, 4, [])
    assert totals(config).optimizer_steps is None
    known = totals(config, 320)
    assert (known.optimizer_steps, known.samples, known.exact) == (10, 320, False)


def test_the_parameters_of_the_language_model_are_those_of_the_model() -> None:
    """Counted on the module that is trained."""
    import torch  # of all the form's tests only this one needs it

    from trainer_backend.tasks.language_model import GPT

    task = LanguageModelTask(context_length=24, layers=3, width=20, heads=5)
    with torch.device("meta"):
        model = GPT(task)
    assert parameters(RunConfig(task=task)) == sum(parameter.numel() for parameter in model.parameters())


def test_samples_are_said_in_optimizer_steps() -> None:
    """Exactly, or about."""
    assert in_steps(640, 32) == "= 20 optimizer steps"
    assert in_steps(32, 32) == "= 1 optimizer step"
    assert in_steps(650, 32) == "≈ 20.3 optimizer steps"
    assert in_steps(100_001, 32) == "≈ 3,125 optimizer steps"
