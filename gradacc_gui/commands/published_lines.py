"""What a run's recipe says was published beside what the run itself is and reached, for the command line."""

from __future__ import annotations

from gradacc_gui.run.as_run import published_beside
from trainer_backend.journal_reader import JournalReader
from trainer_backend.protocol import EvaluationMeasured
from trainer_backend.published import Difference
from trainer_backend.run_directory import RunDirectory
from trainer_backend.run_facts import RunFacts
from trainer_backend.settings import settings_of


def published_and_here(run: RunDirectory, reader: JournalReader) -> tuple[str, list[Difference]]:
    """Where it was published, and every published value beside the run's own; empty where there is none."""
    config = run.config()
    if config is None:  # the journal can still be told
        return "", []
    so_now = RunFacts(settings_of(config)).take_all(reader.facts())
    measured = _newest_evaluation(reader, so_now)
    return config.published.source, published_beside(config, so_now.settings, measured)


def _newest_evaluation(reader: JournalReader, so_now: RunFacts) -> EvaluationMeasured | None:
    """The newest that no later attempt and no roll-back went behind."""
    record = reader.newest_record(EvaluationMeasured)
    while record is not None:
        assert isinstance(record.event, EvaluationMeasured)
        if not so_now.is_superseded(record.seq, record.event.step):
            return record.event
        record = reader.newest_record(EvaluationMeasured, before=record.seq)
    return None
