"""The Results tab's numbers: what was measured, and what was published beside what is run here."""

from __future__ import annotations

from typing import Final

from gradacc_gui.run.as_run import published_beside
from gradacc_gui.run.attachment import Attachment
from gradacc_gui.run.evaluations import StepResults
from gradacc_gui.run.numbers import DASH, count, real
from gradacc_gui.widgets.parts import Panel, label, put
from gradacc_gui.widgets.small_table import Cell, SmallTable, show_published, title_of
from gradacc_gui.words import tr
from trainer_backend.protocol import EvaluationMeasured

MOST_METRICS: Final = 60
"""Rows; a metric for each of a thousand classes belongs into a table."""


class MeasuredPanel(Panel):
    """Loss and metrics of the shown evaluation, and of the one before it."""

    def __init__(self) -> None:
        super().__init__(tr("Measured"))
        self.table = SmallTable(tr("Measured"))
        self.body.addWidget(self.table)
        self.note = label(role="help", wrap=True)
        self.body.addWidget(self.note)

    def show_evaluation(self, shown: StepResults, before: StepResults | None) -> None:
        """Show an evaluation's loss and metrics beside those of the one before."""
        measured = shown.measured
        values = _values(measured)
        earlier = _values(before.measured) if before is not None else {}
        header = ["", tr("step {step}").format(step=count(shown.step))]
        if before is not None:
            header.append(tr("step {step}").format(step=count(before.step)))
        rows = []
        for name, value in list(values.items())[:MOST_METRICS]:
            row = [Cell(name), Cell(value)]
            if before is not None:
                row.append(Cell(earlier.get(name, DASH), "muted"))
            rows.append(row)
        self.table.show_rows(header, rows)
        self.table.setVisible(bool(rows))
        put(self.note, _note(measured, len(values)))
        self.note.setVisible(bool(self.note.text()))


def _values(measured: EvaluationMeasured | None) -> dict[str, str]:
    if measured is None:
        return {}
    found = {tr("Loss"): real(measured.loss)}
    return found | {title_of(name): real(value) for name, value in measured.metrics.items()}


def _note(measured: EvaluationMeasured | None, metrics: int) -> str:
    if measured is None:
        return tr("Nothing was measured at this step.")
    text = tr("{samples} samples in {seconds:.1f} s").format(
        samples=count(measured.samples), seconds=measured.duration_s
    )
    left_out = metrics - MOST_METRICS
    return text + (
        tr(" · {count} more metrics in the journal").format(count=left_out) if left_out > 0 else ""
    )


class PublishedComparison(Panel):
    """The recipe's [published] values beside the run's own; hidden when the recipe has none."""

    def __init__(self) -> None:
        super().__init__(tr("Published settings, for comparison"))
        self.source = label(role="help", wrap=True)
        self.body.addWidget(self.source)
        self.table = SmallTable(tr("Published settings, for comparison"))
        self.body.addWidget(self.table)
        self._made_of: tuple[object, ...] = ()
        self.hide()

    def show_run(self, run: Attachment, measured: EvaluationMeasured | None) -> None:
        """Compare anew when anything changed that is compared."""
        made_of = (run.run, run.settings, measured)
        if made_of == self._made_of:
            return
        self._made_of = made_of
        differences = published_beside(run.config, run.settings, measured)
        source = run.config.published.source if run.config is not None else ""
        put(self.source, source)
        self.source.setVisible(bool(source))
        show_published(self.table, differences)
        self.setVisible(bool(differences))


def nothing_yet(run: Attachment | None) -> tuple[str, str]:
    """A title and a sentence for a run without an evaluation: when something appears, or why nothing will."""
    what = tr("Results of evaluations appear here: metrics, pictures, texts and tables.")
    if run is None:
        return tr("No evaluation yet"), what
    config = run.config
    if config is not None and config.evaluation.every_samples is None:
        if config.targets.validation_loss is None:
            how = tr("Its recipe has none. Set evaluation.every_samples to evaluate every n samples.")
            return tr("This run has no evaluation"), f"{how} {what}"
        return tr("No evaluation yet"), f"{tr('This run is evaluated once, at its end.')} {what}"
    if run.store.caught_up and run.state.is_over:
        return tr("No evaluation was made"), tr("This run ended before its first one was due.")
    every = config.evaluation.every_samples if config is not None else None
    when = "" if every is None else tr("The first one runs after {count} samples.").format(count=count(every))
    return tr("No evaluation yet"), f"{when} {what}".strip()
