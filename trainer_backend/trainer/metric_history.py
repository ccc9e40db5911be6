"""What a run's evaluations found so far, and whether they still get better."""

from __future__ import annotations

from trainer_backend.goals import EarlyStoppingSection, has_stopped_improving
from trainer_backend.journal_reader import JournalReader
from trainer_backend.protocol import EvaluationMeasured
from trainer_backend.run_directory import RunDirectory
from trainer_backend.run_facts import RunFacts


def values_of(event: EvaluationMeasured) -> dict[str, float]:
    """An evaluation's numbers by name; the validation loss is `loss`."""
    return event.metrics | ({} if event.loss is None else {"loss": event.loss})


class MetricHistory:
    """The evaluations of a run's present course, oldest first."""

    def __init__(self, asked: EarlyStoppingSection) -> None:
        self._asked = asked
        self._found: list[tuple[int, dict[str, float]]] = []

    def take_up(self, run: RunDirectory, facts: RunFacts, step: int) -> None:
        """Read what earlier attempts measured until `step`, without what was gone behind."""
        if not run.journal_path.is_file():
            return
        reader = JournalReader(run.journal_path)
        try:
            records = reader.measurements(EvaluationMeasured)
        finally:
            reader.close()
        for record in records:
            event = record.event
            assert isinstance(event, EvaluationMeasured)
            if event.step <= step and not facts.is_superseded(record.seq, event.step):
                self._found.append((event.step, values_of(event)))

    def add(self, event: EvaluationMeasured) -> dict[str, float]:
        """Take another; gives its numbers by name."""
        values = values_of(event)
        self._found.append((event.step, values))
        return values

    def go_back(self, step: int) -> None:
        """The run stands at an earlier step again."""
        self._found = [one for one in self._found if one[0] <= step]

    def have_stopped_improving(self) -> bool:
        """Whether early stopping ends the run here."""
        metric = self._asked.metric
        return has_stopped_improving(
            [values[metric] for _, values in self._found if metric in values], self._asked
        )
