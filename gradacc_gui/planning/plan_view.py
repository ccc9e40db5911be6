"""What fits: the pairs for the wanted effective batch, which is fastest and why; one press fills the form."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, TypeAlias

from PySide6.QtCore import Signal
from PySide6.QtWidgets import QFrame, QHBoxLayout, QScrollArea, QVBoxLayout, QWidget

from gradacc_gui.planning.pairs_table import PairsTable
from gradacc_gui.planning.plan_process import PlanProcess
from gradacc_gui.run.numbers import count, left_s, real
from gradacc_gui.session.interpreter import Interpreter
from gradacc_gui.theme import space
from gradacc_gui.widgets.parts import SELECTABLE, Notice, Panel, button, label, put
from gradacc_gui.words import tr
from trainer_backend.planner.pairs import Pair, Plan
from trainer_backend.planner.plan_messages import PlanProgress
from trainer_backend.planner.plan_words import gib, headline, how_measured, reasons

Asked: TypeAlias = tuple[str, Path, str, str]
"""A recipe's text, its folder, the run's name, the interpreter."""
PlanState: TypeAlias = Literal["empty", "running", "done", "failed"]


class PlanView(QWidget):
    """Give it a recipe with `plan`."""

    use_requested = Signal(int, int)
    """Micro-batch size and N that shall stand in the form."""
    changed = Signal()
    """A plan began, or is over."""

    def __init__(self) -> None:
        super().__init__()
        self.setObjectName("page")
        self.state: PlanState = "empty"
        self.made: Plan | None = None
        self._asked: Asked | None = None
        self.process = PlanProcess(self)
        self.process.progressed.connect(self._progress)
        self.process.finished.connect(self._finish)
        self.process.failed.connect(self._fail)
        self.process.cancelled.connect(lambda: self._set_state("empty"))
        self._build()
        self._set_state("empty")

    def _build(self) -> None:
        column = QVBoxLayout(self)
        column.setContentsMargins(0, 0, 0, 0)
        column.setSpacing(space(3))
        self.trouble = Notice("notice-bad", dismissible=False)
        column.addWidget(self.trouble)
        self.answer = Panel(tr("Fastest pair that fits"))
        self.figures = label(role="headline", wrap=True)
        self.costs = label(wrap=True)
        self.why = label(role="help", wrap=True)
        for line in (self.figures, self.costs, self.why):
            line.setTextInteractionFlags(SELECTABLE)
        self.use = button(tr("Use this"), role="primary", clicked=self._use)
        row = QHBoxLayout()
        row.setSpacing(space(4))
        words = QVBoxLayout()
        for line in (self.figures, self.costs, self.why):
            words.addWidget(line)
        row.addLayout(words, 1)
        row.addWidget(self.use)
        self.answer.body.addLayout(row)
        column.addWidget(self.answer)
        self.pairs = Panel(tr("Pairs"))
        self.table = PairsTable()
        self.table.chosen.connect(self._show_pair)
        self.pairs.body.addWidget(self.table)
        self.pairs.body.addWidget(label(tr("Select another row that fits to use it instead."), "help"))
        self.how = label(role="help", wrap=True)
        self.pairs.body.addWidget(self.how)
        self.pairs.body.addStretch(1)
        area = QScrollArea()
        area.setWidgetResizable(True)
        area.setFrameShape(QFrame.Shape.NoFrame)
        area.setWidget(self.pairs)
        column.addWidget(area, 1)

    # ---------------------------------------------------------------------------------- its surface

    def plan(self, asked: Asked, known: Interpreter | None = None) -> None:
        """Measure a recipe; one that is being measured already goes on."""
        if self.process.is_running:
            return
        self._asked, self.made = asked, None
        self.table.show_plan(None)
        put(self.figures, tr("Measuring…"))
        put(self.costs, tr("Each probe runs in a process of its own."))
        put(self.why, "")
        self._set_state("running")
        text, folder, name, python = asked
        self.process.start(text, folder, python, name=name, known=known)

    def is_about(self, asked: Asked | None) -> bool:
        """Whether what is shown (or under way) is this recipe's plan."""
        return asked is not None and asked == self._asked and self.state in ("running", "done")

    def refuse(self, sentence: str) -> None:
        """Say why nothing is measured."""
        self._asked = None
        self._fail(sentence, "")

    def cancel(self) -> None:
        """End what is under way."""
        self.process.cancel()

    def close_down(self) -> None:
        """For a window that closes."""
        self.process.close()

    # --------------------------------------------------------------------------------- what comes

    def _set_state(self, state: PlanState) -> None:
        self.state = state
        self.trouble.setVisible(state == "failed")
        self.answer.setVisible(state in ("running", "done"))
        self.pairs.setVisible(state == "done")
        self.use.setVisible(state == "done" and self.made is not None and self.made.best is not None)
        self.changed.emit()

    def _progress(self, message: PlanProgress) -> None:
        text = tr("Probe {number}: micro-batch {size}.")
        put(self.costs, text.format(number=message.number, size=count(message.size)))

    def _fail(self, sentence: str, more: str) -> None:
        self.trouble.say(sentence, more)
        self._set_state("failed")

    def _finish(self, plan: Plan) -> None:
        self.made = plan
        put(self.pairs.title, tr("Pairs for effective batch {size}").format(size=count(plan.effective_batch)))
        machine = tr("{total} on the device, {other} in use by other programs")
        put(
            self.pairs.hint,
            machine.format(total=gib(plan.machine.total_bytes), other=gib(plan.machine.other_bytes)),
        )
        self.table.show_plan(plan)
        put(self.how, how_measured(plan))
        if plan.chosen is not None:
            self._show_pair(plan.chosen)
        else:
            put(self.figures, headline(plan))
            put(self.costs, "")
        put(self.why, " ".join(reasons(plan)))
        self._set_state("done")

    def _show_pair(self, place: int) -> None:
        assert self.made is not None
        pair = self.made.pairs[place]
        product = tr("{size} × {steps} = {batch}")
        put(
            self.figures,
            product.format(
                size=count(pair.micro_batch_size), steps=count(pair.accumulation_steps),
                batch=count(self.made.effective_batch),
            ),
        )  # fmt: skip
        put(self.costs, self._cost(pair))

    def _cost(self, pair: Pair) -> str:
        assert self.made is not None
        text = tr("{peak} at most, {speed} samples/s, {step} s per optimizer step").format(
            peak=gib(pair.peak_bytes), speed=real(pair.samples_per_s, 3), step=real(pair.step_s, 3)
        )
        if self.made.optimizer_steps is None:
            return text
        whole = left_s(self.made.optimizer_steps * pair.step_s)
        return text + tr(", {time} for the whole run").format(time=whole)

    def _use(self) -> None:
        if self.made is not None and self.table.selected is not None:
            pair = self.made.pairs[self.table.selected]
            self.use_requested.emit(pair.micro_batch_size, pair.accumulation_steps)
