"""The real libraries, watched: windows counted, N changed where it is exact, refused where it is not."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch

from trainer_backend.errors import UsageError
from trainer_backend.inbox import send
from trainer_backend.integrations import Recorder, watch
from trainer_backend.integrations.counting import Modulo
from trainer_backend.journal import JournalReader
from trainer_backend.protocol import (
    AccumulationChanged,
    AnyCommand,
    AnyEvent,
    CommandAccepted,
    CommandRefused,
    EvaluationMeasured,
    MicroBatchMeasured,
    OptimizerStepMeasured,
    Pause,
    RunFailed,
    RunFinished,
    RunStarted,
    RunStopped,
    SetAccumulation,
    SetLearningRate,
    Stop,
)

Ask = Callable[[int, AnyCommand], None]


def events_of(recorder: Recorder) -> list[AnyEvent]:
    """All that a run's journal holds."""
    reader = JournalReader(recorder.run.journal_path)
    try:
        return [record.event for record in reader.read(0, 100_000).records()]
    finally:
        reader.close()


def of(events: list[AnyEvent], kind: type) -> list[Any]:
    """Events of one kind."""
    return [event for event in events if isinstance(event, kind)]


def ask(recorder: Recorder, command: AnyCommand) -> Any:
    """Send a command and wait for its answer, as another process would."""
    send(recorder.run.inbox_path, command)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        for event in events_of(recorder):
            if isinstance(event, (CommandAccepted, CommandRefused)) and event.command_id == command.id:
                return event
        time.sleep(0.02)
    raise AssertionError("no answer")


def windows(recorder: Recorder) -> list[int]:
    """Micro-batches of each window."""
    return [event.micro_batches for event in of(events_of(recorder), OptimizerStepMeasured)]


# ------------------------------------------------------------------------------- a plain loop


def test_a_plain_loop_takes_a_new_n_at_the_next_window_exactly() -> None:
    """The probe: the digits of each update tell which micro-batches entered, with what divisor."""
    weight = torch.zeros((), dtype=torch.float64, requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    updates = []
    with Recorder("plain", micro_batch_size=1, accumulation_steps=2) as run:
        for number, window in enumerate(run.windows([10.0**power for power in range(9)])):
            before = weight.item()
            for index, value in enumerate(window):
                loss = -weight * value
                (loss / len(window)).backward()  # type: ignore[no-untyped-call]
                run.micro_batch(loss, samples=1)
                if number == 1 and index == 0:
                    answer = ask(run, SetAccumulation(steps=3))
                    assert isinstance(answer, CommandAccepted)
                    assert answer.applies_at_step == 3
            optimizer.step()
            optimizer.zero_grad()
            run.optimizer_step(learning_rate=1.0)
            updates.append((weight.item() - before) * len(window))
    assert updates == pytest.approx([11, 1100, 1110000, 110000000])
    events = events_of(run)
    assert windows(run) == [2, 2, 3, 2]
    assert [(change.step, change.before, change.after) for change in of(events, AccumulationChanged)] == [
        (3, 2, 3)
    ]
    assert isinstance(events[-1], RunFinished)
    assert len(of(events, MicroBatchMeasured)) == 9


def test_a_plain_loop_stops_pauses_and_refuses() -> None:
    """What a loop of one's own cannot do is refused with a code."""
    with Recorder("plain", micro_batch_size=1, accumulation_steps=1) as run:
        for number, window in enumerate(run.windows(range(100))):
            run.micro_batch(float(number), samples=len(window))
            run.optimizer_step(learning_rate=0.1)
            if number == 0:
                refused = ask(run, SetLearningRate(value=1.0))
                assert isinstance(refused, CommandRefused)
                assert refused.code == "library-decides"
                assert isinstance(ask(run, SetAccumulation(steps=0)), CommandRefused)
                assert isinstance(ask(run, Pause()), CommandAccepted)
                ask(run, Stop())
    events = events_of(run)
    assert isinstance(events[-1], RunStopped)
    assert len(of(events, OptimizerStepMeasured)) == 1


@pytest.mark.parametrize("companion", ["scale_beta2", "scale_weight_decay", "scale_ema"])
def test_a_loop_of_ones_own_refuses_companions_of_n_that_it_cannot_scale(companion: str) -> None:
    """A library's optimizer and averages are its own: half of what was asked for is never done silently."""
    with Recorder("plain", micro_batch_size=1, accumulation_steps=2) as run:
        refused = ask(run, msgspec.structs.replace(SetAccumulation(steps=3), **{companion: True}))
        assert isinstance(refused, CommandRefused)
        assert (refused.code, refused.values) == ("library-decides", {"companions": True})
        assert run.accumulation_steps == 2


def test_an_exception_in_the_loop_is_how_the_run_failed() -> None:
    """With its words."""

    def fail(run: Recorder) -> None:
        with run:
            raise ValueError("my own mistake")

    run = Recorder("plain", micro_batch_size=1, accumulation_steps=1)
    with pytest.raises(ValueError, match="my own mistake"):
        fail(run)
    assert "my own mistake" in of(events_of(run), RunFailed)[0].reason


def test_what_is_no_trainer_is_refused() -> None:
    """By the name of its class."""
    with pytest.raises(UsageError, match="object is none of"):
        watch(object())


# ------------------------------------------------------------------------------- accelerate


def test_a_watched_accelerator_gets_its_own_methods_back() -> None:
    """At the end of the `with`, and by close()."""
    import accelerate

    accelerator = accelerate.Accelerator(gradient_accumulation_steps=2, cpu=True)
    with watch(accelerator, micro_batch_size=1):
        assert {"accumulate", "backward"} <= vars(accelerator).keys()
    assert not {"accumulate", "backward"} & vars(accelerator).keys()
    watch(accelerator, micro_batch_size=1).close()
    assert not {"accumulate", "backward"} & vars(accelerator).keys()


def test_accelerate_takes_a_new_n_at_any_border_exactly() -> None:
    """Its counter would mis-size the window; it starts again instead. The end of the data steps too."""
    import accelerate
    from torch.utils.data import DataLoader

    accelerator = accelerate.Accelerator(gradient_accumulation_steps=2, cpu=True)
    model = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    data: Any = [torch.tensor([10.0**power], dtype=torch.float64) for power in range(9)]
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(data, batch_size=1))
    moves = []
    with watch(accelerator, micro_batch_size=1) as watcher:
        for number, batch in enumerate(loader):
            before = float(model.weight.detach())
            with accelerator.accumulate(model):
                accelerator.backward(-model(batch).sum())
                optimizer.step()
                optimizer.zero_grad()
            moves.append(float(model.weight.detach()) - before)
            if number == 1:
                answer = ask(watcher.recorder, SetAccumulation(steps=3))
                assert answer.applies_at_step == 3  # the second window's N has been handed out
    assert windows(watcher.recorder) == [2, 2, 3, 2]
    (change,) = of(events_of(watcher.recorder), AccumulationChanged)
    assert change.step == 3
    # The library divides its last, shorter window by N too: that is its own fault, told by the auditor.
    updates = [move for move in moves if move]
    assert updates == pytest.approx([11 / 2, 1100 / 2, 1_110_000 / 3, 110_000_000 / 3])


# ----------------------------------------------------------------------------- transformers


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Ragged labels for a tiny model."""

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        tokens = (torch.arange(8) * (index + 1)) % 50
        labels = tokens.clone()
        labels[: index % 5] = -100
        return {"input_ids": tokens, "labels": labels}


def make_trainer(folder: Path, **options: Any) -> Any:
    """A real Trainer on a tiny GPT-2."""
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=16, bos_token_id=0, eos_token_id=0
    )
    arguments = {
        "output_dir": str(folder / "out"),
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "num_train_epochs": 1,
        "report_to": [],
        "use_cpu": True,
        "disable_tqdm": True,
        "save_strategy": "no",
        "logging_strategy": "no",
        "dataloader_pin_memory": False,
    } | options
    return transformers.Trainer(
        model=transformers.GPT2LMHeadModel(config),
        args=transformers.TrainingArguments(**arguments),
        train_dataset=Rows(),
        eval_dataset=Rows(),
    )


def during(watcher: Any, act: Callable[[int], Any]) -> None:
    """Call `act(step)` after each optimizer step."""
    put = watcher.on_step_end

    def on_step_end(args: Any, state: Any, control: Any, **more: Any) -> None:
        put(args, state, control, **more)
        act(state.global_step)

    watcher.on_step_end = on_step_end


def test_transformers_is_watched_and_takes_a_larger_n_where_its_counter_allows(tmp_path: Path) -> None:
    """24 rows, micro-batches of 2: windows of 2, then 4 from a multiple of 4 on; a smaller N is refused."""
    trainer = make_trainer(tmp_path, eval_strategy="epoch")
    watcher = watch(trainer, name="hf")
    answers: list[AnyEvent] = []

    def act(step: int) -> None:
        if step == 1:
            answers.append(ask(watcher.recorder, SetAccumulation(steps=1)))
            answers.append(ask(watcher.recorder, SetAccumulation(steps=4)))

    during(watcher, act)
    trainer.train()
    refused, accepted = answers
    assert isinstance(refused, CommandRefused)
    assert refused.code == "library-counts-updates-ahead"
    assert isinstance(accepted, CommandAccepted)
    assert accepted.applies_at_step == 3
    events = events_of(watcher.recorder)
    assert windows(watcher.recorder) == [2, 2, 4, 4]
    assert sum(event.samples for event in of(events, OptimizerStepMeasured)) == 24
    assert isinstance(events[-1], RunFinished)
    assert of(events, EvaluationMeasured)[0].loss > 0
    assert of(events, RunStarted)[0].versions["transformers"]


def test_transformers_takes_at_the_next_epoch_what_its_counter_allows_no_sooner(tmp_path: Path) -> None:
    """12 micro-batches an epoch, N = 2: 7 is whole at the next epoch's first window, and named so at once.

    The same when it is asked for while the epoch's end is evaluated.
    """
    trainer = make_trainer(tmp_path, num_train_epochs=3, eval_strategy="epoch")
    watcher = watch(trainer)
    answers: list[Any] = []
    evaluate = watcher.on_evaluate

    def on_evaluate(args: Any, state: Any, control: Any, **more: Any) -> None:
        evaluate(args, state, control, **more)
        if state.global_step == 8:
            answers.append(ask(watcher.recorder, SetAccumulation(steps=5)))

    watcher.on_evaluate = on_evaluate

    def act(step: int) -> None:
        if step == 1:
            answers.append(ask(watcher.recorder, SetAccumulation(steps=7)))

    during(watcher, act)
    trainer.train()
    assert [answer.applies_at_step for answer in answers] == [7, 9]
    assert windows(watcher.recorder) == [2, 2, 2, 2, 2, 2, 7, 5, 5, 5, 2]
    changes = of(events_of(watcher.recorder), AccumulationChanged)
    assert [(change.step, change.after) for change in changes] == [(7, 7), (9, 5)]


def test_the_losses_of_transformers_are_those_of_its_micro_batches(tmp_path: Path) -> None:
    """A micro-batch's mean over its own tokens, and the window's by weight."""
    trainer = make_trainer(tmp_path, max_steps=1, learning_rate=0.0, data_seed=1)
    watcher = watch(trainer)
    seen: list[tuple[int, float]] = []
    compute = trainer.compute_loss

    def compute_loss(model: Any, inputs: dict[str, torch.Tensor], **more: Any) -> Any:
        labels = inputs["labels"][:, 1:]
        logits = model(input_ids=inputs["input_ids"]).logits[:, :-1].flatten(0, 1)
        mean = torch.nn.functional.cross_entropy(logits, labels.flatten())
        seen.append((int((labels != -100).sum()), mean.item()))
        return compute(model, inputs, **more)

    trainer.compute_loss = compute_loss
    trainer.model.config.attn_pdrop = 0.0
    for module in trainer.model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    trainer.train()
    micro = of(events_of(watcher.recorder), MicroBatchMeasured)
    assert [event.weight for event in micro] == [weight for weight, _ in seen]
    assert [event.loss for event in micro] == pytest.approx([mean for _, mean in seen], rel=1e-5)
    (step,) = of(events_of(watcher.recorder), OptimizerStepMeasured)
    whole = sum(weight * mean for weight, mean in seen) / sum(weight for weight, _ in seen)
    assert step.loss == pytest.approx(whole, rel=1e-5)


def test_a_stop_ends_transformers_and_an_error_fails_the_run(tmp_path: Path) -> None:
    """Both are how the run ended."""
    trainer = make_trainer(tmp_path)
    watcher = watch(trainer)
    during(watcher, lambda step: step == 1 and ask(watcher.recorder, Stop()))
    trainer.train()
    assert isinstance(events_of(watcher.recorder)[-1], RunStopped)
    trainer = make_trainer(tmp_path)
    watcher = watch(trainer)
    trainer.data_collator = None
    with pytest.raises(TypeError):
        trainer.train()
    assert isinstance(events_of(watcher.recorder)[-1], RunFailed)


@pytest.mark.parametrize("fails", [False, True])
def test_after_training_a_watched_trainer_has_its_own_methods_and_callbacks_back(
    tmp_path: Path, fails: bool
) -> None:
    """Whether it ended or failed, and also a method that the user had put there."""
    trainer = make_trainer(tmp_path, max_steps=1)
    kept = trainer.training_step
    trainer.training_step = kept  # an attribute of this very object, as a user's own wrapper is
    callbacks = list(trainer.callback_handler.callbacks)
    watch(trainer)
    assert trainer.training_step is not kept
    assert "train" in vars(trainer)
    if fails:
        trainer.data_collator = None
        with pytest.raises(TypeError):
            trainer.train()
    else:
        trainer.train()
    assert trainer.training_step is kept
    assert "train" not in vars(trainer)
    assert trainer.callback_handler.callbacks == callbacks


# -------------------------------------------------------------------------------- Lightning


class Endless(torch.utils.data.IterableDataset[torch.Tensor]):
    """Twenty rows that do not tell how many they are."""

    def __iter__(self) -> Iterator[torch.Tensor]:
        return iter(torch.ones(20, 2))


def fit_lightning(folder: Path, data: Any, ask_at: int, steps: int) -> tuple[Recorder, Any]:
    """Two epochs of micro-batches of 2 under N = 2; `steps` is asked for at a micro-batch of the first."""
    import lightning.pytorch as lightning
    from torch.utils.data import DataLoader

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: torch.Tensor) -> Any:
            return (self.layer(batch) ** 2).mean()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        max_epochs=2,
        accumulate_grad_batches=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=folder,
    )
    watcher = watch(trainer, name="lit")
    end = watcher.on_train_batch_end
    answers: list[Any] = []

    def on_train_batch_end(trainer: Any, module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        end(trainer, module, outputs, batch, batch_idx)
        if batch_idx == ask_at and not answers:
            answers.append(ask(watcher.recorder, SetAccumulation(steps=steps)))

    watcher.on_train_batch_end = on_train_batch_end
    trainer.fit(Module(), DataLoader(data, batch_size=2))
    assert isinstance(events_of(watcher.recorder)[-1], RunFinished)
    return watcher.recorder, answers[0]


QUIET = pytest.mark.filterwarnings(
    "ignore:.*num_workers.*", "ignore:.*log.*interval.*", "ignore:.*LeafSpec.*"
)


@QUIET
@pytest.mark.parametrize(
    ("rows", "steps", "step", "expected"),
    [
        (24, 3, 4, [2, 2, 2, 3, 3, 3, 3, 3, 3]),  # a common multiple in the epoch
        (20, 7, 6, [2, 2, 2, 2, 2, 7, 3]),  # none: the next epoch's first window
        (18, 4, 3, [2, 2, 4, 1, 4, 4, 1]),  # before the epoch's short tail
        (18, 10, 6, [2, 2, 2, 2, 1, 9]),  # behind it
    ],
)
def test_lightning_takes_a_new_n_at_the_very_step_that_the_answer_names(
    tmp_path: Path, rows: int, steps: int, step: int, expected: list[int]
) -> None:
    """Where its counter, which starts again with each epoch, makes the window whole."""
    recorder, answer = fit_lightning(tmp_path, torch.ones(rows, 2), 1, steps)
    assert answer.applies_at_step == step
    (change,) = of(events_of(recorder), AccumulationChanged)
    assert (change.step, change.before, change.after) == (step, 2, steps)
    assert windows(recorder) == expected


@QUIET
def test_a_change_that_an_unforeseen_end_of_the_epoch_spoils_is_refused_after_all(tmp_path: Path) -> None:
    """Data without a length: 7 was to come at step 8; the epoch ends at 5, and N stays."""
    recorder, answer = fit_lightning(tmp_path, Endless(), 1, 7)
    assert answer.applies_at_step == 8
    events = events_of(recorder)
    (refused,) = of(events, CommandRefused)
    assert (refused.command_id, refused.code, refused.values) == (
        answer.command_id, "epoch-ended-early", {"step": 8},
    )  # fmt: skip
    assert of(events, AccumulationChanged) == []
    assert windows(recorder) == [2] * 10


def test_a_change_keeps_its_step_over_a_counter_that_starts_again() -> None:
    """N = 2, and 3 is promised for step 4: that window is whole also if the counter went back to 2."""
    with Recorder("hold", micro_batch_size=1, accumulation_steps=2, rule=Modulo()) as run:
        run.next_accumulation_steps()
        answer = ask(run, SetAccumulation(steps=3))
        assert answer.applies_at_step == 4
        for step in range(1, 6):
            for _ in range(run.next_accumulation_steps()):
                run.micro_batch(1.0, samples=1)
            run.optimizer_step(learning_rate=0.1)
            if step == 1:
                run.restart_counter(done=2)
    assert windows(run) == [2, 2, 2, 3, 3]
