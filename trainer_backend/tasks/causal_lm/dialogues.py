"""Dialogues as tokens: each by itself, so that several processes can share the work.

Letters: t tokens of a row.
"""

from __future__ import annotations

import dataclasses
import multiprocessing
import os
import sys
from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any, Final, Generic, TypeVar

import torch
from torch.utils.data import DataLoader

from trainer_backend.data.reading import as_it_is, ignore_interrupts
from trainer_backend.data.sources import end_workers
from trainer_backend.kinds.causal_lm import CausalLMTask
from trainer_backend.tasks.causal_lm.answers import Answers, Row, Specials
from trainer_backend.tasks.causal_lm.spans import Tokens
from trainer_backend.tasks.causal_lm.templates import Template
from trainer_backend.tasks.causal_lm.turns import Dialogue, Unfit

ALONE: Final = 2_000
"""Samples that one process has read before others could have begun."""
PORTION: Final = 128
"""Samples that go to a process at once."""
PORTION_CHARACTERS: Final = 2**18
"""Fewer samples go where their texts are this long: what is read ahead stays small."""
MOST_PROCESSES: Final = 8
"""Reading the file, which one process does, is about an eighth of the work."""
Other = TypeVar("Other")


@dataclasses.dataclass(frozen=True)
class TokenizedDialogue:
    """What a dialogue became: rows of ids and of whether each id is learnt, or why there are none."""

    rows: tuple[tuple[array[int], bytes], ...]
    """int32 (t,), and one byte an id: 1 where it is learnt."""
    counts: Counter[str]
    """What happened that a person should know, by its code."""
    unfit: str = ""


class DialogueTokenizer:
    """Turns dialogues into tokens with one tokenizer and one recipe."""

    def __init__(
        self,
        tokenizer: Any,  # noqa: ANN401 - any tokenizer class
        template: Template,
        tokens: Tokens,
        specials: Specials,
        task: CausalLMTask,
    ) -> None:
        self._tokenizer, self._template, self._tokens = tokenizer, template, tokens
        self._specials, self._train_on = specials, task.train_on
        self._answers = Answers(template, specials)

    def tokenized(self, dialogue: Dialogue) -> TokenizedDialogue:
        """The rows of a dialogue, or the reason why it cannot be taken."""
        self._answers.counts = counts = Counter[str]()
        try:
            rows = self._rows(dialogue, counts)
            own = sum(len(self._specials.one.findall(turn.text)) for turn in dialogue.turns)
            counts["specials-in-texts"] += own
            learnt = [self._tokens.learnt(row) for row in rows]
        except Unfit as error:
            return TokenizedDialogue((), counts, str(error))
        return TokenizedDialogue(tuple((array("i", ids), bytes(mask)) for ids, mask in learnt), counts)

    def _rows(self, dialogue: Dialogue, counts: Counter[str]) -> list[Row]:
        if self._template.is_plain and dialogue.continuation and len(dialogue.turns) == 2:
            counts["joined"] += 1
            return [self._continued(dialogue)]
        counts["plain"] += self._template.is_plain
        if self._train_on == "everything":
            text = self._template.render(dialogue.turns, dialogue.tools, asks=False, thinks=None)
            return [Row(text, ((0, len(text)),))]
        return self._answers.rows(dialogue, last_only=self._train_on == "last")

    def _continued(self, dialogue: Dialogue) -> Row:
        prompt, answer = (turn.text for turn in dialogue.turns)
        begin = self._tokenizer.bos_token or ""
        if not begin or not self._adds_bos or prompt.startswith(begin):
            begin = ""
        text = begin + prompt
        start = 0 if self._train_on == "everything" else len(text)
        whole = text + answer + self._specials.eos
        return Row(whole, ((start, len(whole)),))

    @cached_property
    def _adds_bos(self) -> bool:
        ids: list[int] = self._tokenizer("a", verbose=False)["input_ids"]
        return ids[:1] == [self._tokenizer.bos_token_id]


def processes() -> int:
    """How many may tokenise beside this one; 0 where they would not begin as its copies (fork)."""
    if sys.platform != "linux" or "fork" not in multiprocessing.get_all_start_methods():
        return 0
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1") or 1)
    count = min(MOST_PROCESSES, len(os.sched_getaffinity(0)) // max(1, ranks))
    return count if count > 1 else 0


def tokenized_samples(
    samples: Iterable[tuple[Dialogue | Other, str]],
    tokenized: Callable[[Dialogue], TokenizedDialogue],
    workers: int,
) -> Iterator[tuple[Dialogue | Other, str, TokenizedDialogue | None]]:
    """Samples in their order, dialogues with what they become; many of them by `workers` processes.

    What reading raises comes behind all samples that were read before, as it would with one process.
    """
    remaining = iter(samples)
    for number, (sample, group) in enumerate(remaining):
        yield sample, group, tokenized(sample) if isinstance(sample, Dialogue) else None
        if workers and isinstance(sample, Dialogue) and number >= ALONE:
            yield from _Ahead(remaining, tokenized).results(workers)


class _Tokenizing(torch.utils.data.Dataset[list[TokenizedDialogue]]):
    """What a process does with a portion."""

    def __init__(self, tokenized: Callable[[Dialogue], TokenizedDialogue]) -> None:
        self._tokenized = tokenized

    def __getitem__(self, dialogues: Sequence[Dialogue]) -> list[TokenizedDialogue]:
        return [self._tokenized(dialogue) for dialogue in dialogues]


class _Ahead(Generic[Other]):
    """Reads portions ahead, as a loader's sampler, and joins them with what the workers make of them."""

    def __init__(
        self,
        samples: Iterator[tuple[Dialogue | Other, str]],
        tokenized: Callable[[Dialogue], TokenizedDialogue],
    ) -> None:
        self._samples, self._work = samples, _Tokenizing(tokenized)
        self._portions: deque[list[tuple[Dialogue | Other, str]]] = deque()
        self._raised: BaseException | None = None

    def __iter__(self) -> Iterator[list[Dialogue]]:
        """For the loader: the dialogues of each portion."""
        while True:
            portion: list[tuple[Dialogue | Other, str]] = []
            try:
                self._fill(portion)
            except Exception as error:  # noqa: BLE001 - raised again once what was read is given out
                self._raised = error
            if not portion:
                return
            self._portions.append(portion)
            yield [sample for sample, _ in portion if isinstance(sample, Dialogue)]
            if self._raised is not None:
                return

    def _fill(self, portion: list[tuple[Dialogue | Other, str]]) -> None:
        characters = 0
        for sample, group in self._samples:
            portion.append((sample, group))
            texts = sample.turns if isinstance(sample, Dialogue) else (sample,)
            characters += sum(len(getattr(text, "text", "")) for text in texts)
            if len(portion) == PORTION or characters > PORTION_CHARACTERS:
                return

    def results(self, workers: int) -> Iterator[tuple[Dialogue | Other, str, TokenizedDialogue | None]]:
        """All samples in their order. The processes end with the iterator."""
        loader = DataLoader(
            self._work,
            batch_size=None,
            sampler=self,
            num_workers=workers,
            collate_fn=as_it_is,
            worker_init_fn=ignore_interrupts,
            multiprocessing_context="fork",
            generator=torch.Generator().manual_seed(0),
        )
        made = iter(loader)
        try:
            for found in made:
                becoming = iter(found)
                for sample, group in self._portions.popleft():
                    yield sample, group, next(becoming) if isinstance(sample, Dialogue) else None
        finally:
            end_workers(made)
        if self._raised is not None:
            raise self._raised
