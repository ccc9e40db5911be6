"""A task that draws from every generator there is, and that can be killed at a chosen moment.

What a kill can take is the journal's last batch, so a change that the test has asked for is in the
journal before the process dies: its windows take less time than the journal's thread may need.

Augmentation draws from Python's, NumPy's and torch's generators, the model has dropout and BatchNorm.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from trainer_backend.inbox import send
from trainer_backend.journal_reader import JournalReader
from trainer_backend.protocol import AnyCommand, SetAccumulation, SetLearningRate, SettingChanged, Stop
from trainer_backend.tasks import Datasets, LossTerm
from trainer_backend.trainer import checkpoint


class Augmented(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Points of two classes, moved by chance each time they are read."""

    def __len__(self) -> int:
        return 62

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        base = torch.linspace(-1.0, 1.0, 8) * (1.0 + index / 62)
        moved = base + 0.1 * torch.randn(8) + random.random() + float(np.random.rand())  # noqa: NPY002, S311
        return moved, torch.tensor(index % 2)


class Model(torch.nn.Sequential):
    """Kills its process when it is asked for its state the `kill_saving`-th time, or given one."""

    kill_saving = 0
    kill_loading = 0
    saved = 0
    die: Callable[[], None]

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As any module's, but that the process dies once it has been loaded."""
        loaded = super().load_state_dict(*args, **kwargs)
        if self.kill_loading:
            self.die()
        return loaded

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As any module's."""
        self.saved += 1
        if self.saved == self.kill_saving:
            self.die()
        return super().state_dict(*args, **kwargs)


class Task:
    """At which call of the loss to ask or to stop; at which loss, step or save to die; 0 is never.

    `kill_writing`: the file of tensors, counted over all checkpoints, before which to die: 4 is between the
    two of the second checkpoint. `kill_renaming`: the checkpoint whose folder is about to get its name.
    `kill_asked`: die once what is asked at `ask_at` is answered, before it can take effect.
    `full_at`: the loss that finds no memory for more than two samples, once.
    """

    def __init__(
        self,
        *,
        inbox: str,
        ask_at: int = 0,
        stop_at: int = 0,
        stop_now_at: int = 0,
        kill_loss: int = 0,
        kill_step: int = 0,
        kill_saving: int = 0,
        kill_backward: int = 0,
        kill_writing: int = 0,
        kill_renaming: int = 0,
        kill_evaluating: int = 0,
        kill_loading: int = 0,
        full_at: int = 0,
        kill_asked: int = 0,
    ) -> None:
        self._inbox = Path(inbox)
        self._ask_at = ask_at
        self._stop_at = stop_at
        self._stop_now_at = stop_now_at
        self._kill_loss = kill_loss
        self._kill_step = kill_step
        self._kill_saving = kill_saving
        self._kill_backward = kill_backward
        self._kill_evaluating = kill_evaluating
        self._kill_loading = kill_loading
        self._full_at = full_at
        self._kill_asked = kill_asked
        self._evaluated = 0
        if kill_writing:
            _before_call(checkpoint, "_write_tensors", kill_writing, self._die)
        if kill_renaming:
            _before_call(Path, "rename", kill_renaming, self._die, counts=_is_unfinished)
        self._losses = 0
        self._steps = 0
        self._last_asked = ""

    def model(self) -> torch.nn.Module:
        """Dropout, and buffers that training changes."""
        model = Model(
            torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(0.3), torch.nn.Linear(16, 2)
        )
        model.kill_saving = self._kill_saving
        model.kill_loading = self._kill_loading
        model.die = self._die
        return model

    def optimizer(self, parameters: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        """AdamW that may die in a step."""
        optimizer = torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)
        optimizer.register_step_post_hook(self._stepped)
        return optimizer

    def _stepped(self, *_: Any) -> None:
        self._steps += 1
        if self._steps == self._kill_step:
            self._die()

    def datasets(self) -> Datasets:
        """Augmented both."""
        return Datasets(train=Augmented(), validation=Augmented())

    def loss(self, model: torch.nn.Module, batch: list[torch.Tensor]) -> LossTerm:
        """Cross-entropy."""
        points, classes = batch
        if model.training:
            self._losses += 1
            if self._losses == self._ask_at:
                # A new N and learning rate, from the next window on.
                self._ask(SetAccumulation(steps=2, learning_rate_rule="sqrt"))
                self._ask(SetLearningRate(value=0.02))
                if self._kill_asked:
                    os.kill(os.getpid(), signal.SIGKILL)
            if self._losses == self._stop_at:
                self._ask(Stop())
            if self._losses == self._stop_now_at:
                self._ask(Stop(now=True))
            if self._losses == self._kill_loss:
                self._die()
            if self._losses == self._full_at:
                raise torch.OutOfMemoryError("no memory for so many")
        else:
            self._evaluated += 1
            if self._evaluated == self._kill_evaluating:
                self._die()
        total = torch.nn.functional.cross_entropy(model(points), classes, reduction="sum")
        if model.training and self._losses == self._kill_backward:
            total.register_hook(lambda _gradient: self._die())  # type: ignore[no-untyped-call]  # torch's own
        return LossTerm(total, len(classes))

    def _ask(self, command: AnyCommand) -> None:
        """Send a command, and wait until it is answered: its file is taken away."""
        sent = self._last_asked = send(self._inbox, command)
        wait_until(lambda: not (self._inbox / f"{sent}.json").exists())

    def _die(self) -> None:
        """As by kill -9, once the effect of what was asked last is in the journal."""
        if self._last_asked:
            wait_until(self._is_recorded)
        os.kill(os.getpid(), signal.SIGKILL)

    def _is_recorded(self) -> bool:
        reader = JournalReader(self._inbox.parent / "run.sqlite")
        try:
            facts = reader.facts(SettingChanged)
        finally:
            reader.close()
        return any(record.event.command_id == self._last_asked for record in facts)  # type: ignore[union-attr]


def _is_unfinished(path: Path, *_: Any) -> bool:
    """Whether this is a checkpoint's folder that has not got its name yet."""
    return path.name.startswith(".step-") and not path.name.endswith(".old.part")


def _before_call(
    owner: Any,
    name: str,
    count: int,
    do: Callable[[], None],
    *,
    counts: Callable[..., bool] = lambda *_: True,
) -> None:
    """Call `do` before the `count`-th call of a function of `owner`, of those that count."""
    shipped = getattr(owner, name)
    calls = iter(range(1, 1_000_000))

    def called(*args: Any, **kwargs: Any) -> Any:
        if counts(*args) and next(calls) == count:
            do()
        return shipped(*args, **kwargs)

    setattr(owner, name, called)


def wait_until(condition: Callable[[], bool], patience_s: float = 60.0) -> None:
    """Look again and again. Raises TimeoutError, which fails the run, when it does not come true."""
    deadline = time.monotonic() + patience_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError
        time.sleep(0.005)
