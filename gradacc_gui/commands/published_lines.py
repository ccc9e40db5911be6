"""What a run's recipe says was published beside what the run itself is and reached, for the command line."""

from __future__ import annotations

from gradacc_gui.commands.superseding import borders, is_superseded
from gradacc_gui.run.as_run import published_beside
from gradacc_gui.run.in_force import InForce
from trainer_backend.errors import UsageError
from trainer_backend.journal_reader import JournalReader
from trainer_backend.journal_rows import event_of
from trainer_backend.protocol import EvaluationMeasured
from trainer_backend.published import Difference
from trainer_backend.recipe import load_recipe
from trainer_backend.run_directory import RunDirectory


def published_and_here(run: RunDirectory, reader: JournalReader) -> tuple[str, list[Difference]]:
    """Where it was published, and every published value beside the run's own; empty where there is none."""
    try:
        config = load_recipe(run.recipe_path).config
    except UsageError:  # the journal can still be told
        return "", []
    in_force = InForce(config)
    in_force.take(reader.facts())
    return config.published.source, published_beside(config, in_force.settings, _newest_evaluation(reader))


def _newest_evaluation(reader: JournalReader) -> EvaluationMeasured | None:
    """The newest that no later attempt and no roll-back went behind."""
    went_back = borders(reader)
    row = reader.newest(EvaluationMeasured)
    while row is not None:
        event = event_of(EvaluationMeasured, row)
        assert isinstance(event, EvaluationMeasured)
        if not is_superseded(row[0], event.step, went_back):
            return event
        row = reader.newest(EvaluationMeasured, before=row[0])
    return None
