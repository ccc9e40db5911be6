"""What is typed into the search of the runs list, and whether a run fits. No Qt.

    n=8 lr<1e-3 kind:causal-lm tag:paper is:starred "two words"

A term without a sign is looked for in names, ids, tags, notes and settings. All terms must fit; what stands
behind a minus must not.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from gradacc_gui.session.runs import RunSummary
from trainer_backend.protocol import Scalar

SHORT: Final[Mapping[str, str]] = {
    "n": "accumulation.gradient_accumulation_steps",
    "b": "accumulation.micro_batch_size",
    "lr": "optimizer.learning_rate",
    "optimizer": "optimizer.name",
    "decay": "optimizer.weight_decay",
    "beta2": "optimizer.beta2",
    "model": "task.model",
    "kind": "task.kind",
    "seed": "run.seed",
    "device": "run.device",
    "precision": "run.precision",
}
"""Short words for the settings that are searched most; any other goes by its key, or by the key's end."""
_FIELDS: Final[Mapping[str, Callable[[RunSummary], Scalar]]] = {
    "batch": lambda line: line.effective_batch,
    "loss": lambda line: line.loss,
    "val": lambda line: line.validation_loss,
    "step": lambda line: line.step,
    "samples": lambda line: line.samples_seen,
    "memory": lambda line: None if line.peak_memory_bytes is None else line.peak_memory_bytes / 2**30,
    "hours": lambda line: None if line.duration_s is None else line.duration_s / 3600,
    "state": lambda line: line.state.value,
    "name": lambda line: line.name,
    "id": lambda line: line.run.id,
    "note": lambda line: line.about.note,
}
"""What is no setting: `memory` in GiB, `hours` of training."""
_SIGNS: Final[Mapping[str, Callable[[float, float], bool]]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
_WORD: Final = re.compile(r'(?:[^\s"]|"[^"]*"?)+')
_TERM: Final = re.compile(r"([A-Za-z][\w.]*)(<=|>=|!=|<|>|=|:)(.*)", re.DOTALL)


class SearchTerm(msgspec.Struct, frozen=True):
    """One condition."""

    key: str
    """Empty: the value is looked for everywhere."""
    sign: str
    value: str
    """In lower case."""
    negated: bool = False

    def fits(self, line: RunSummary) -> bool:
        """Whether a run meets it."""
        return self._holds(line) != self.negated

    def _holds(self, line: RunSummary) -> bool:
        match self.key:
            case "":
                return self.value in haystack(line)
            case "is":
                return self._is(line)
            case "tag":
                tags = [tag.lower() for tag in line.about.tags]
                return self.value in tags if self.sign == "=" else any(self.value in tag for tag in tags)
            case _:
                values = _values(line, self.key)
                return (
                    all(map(self._fits_value, values))
                    if self.sign == "!="
                    else any(map(self._fits_value, values))
                )

    def _is(self, line: RunSummary) -> bool:
        match self.value:
            case "starred":
                return line.about.starred
            case "live":
                return line.state.is_alive
            case "over":
                return line.state.is_over
            case _:
                return line.state.value == self.value

    def _fits_value(self, found: Scalar) -> bool:
        if found is None:
            return self.sign == "!="
        if self.sign == ":":
            return self.value in str(found).lower()
        wanted, own = _number(self.value), _number(found)
        if wanted is None or own is None:
            same = str(found).lower() == self.value
            return same if self.sign == "=" else (not same if self.sign == "!=" else False)
        if self.sign in _SIGNS:
            return _SIGNS[self.sign](own, wanted)
        close = abs(own - wanted) <= 1e-9 * max(abs(own), abs(wanted))
        return close == (self.sign == "=")


def _number(value: Scalar) -> float | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _values(line: RunSummary, key: str) -> list[Scalar]:
    """What a run has for a key: of a key's end alone, for every setting that ends so."""
    if key in _FIELDS:
        return [_FIELDS[key](line)]
    whole = SHORT.get(key, key)
    if whole in line.settings or "." in whole:
        return [line.settings.get(whole)]
    end = f".{whole}"
    return [value for name, value in line.settings.items() if name.endswith(end)] or [None]


def haystack(line: RunSummary) -> str:
    """The words of a run in lower case: name, id, tags, note, settings that are texts."""
    texts = (value for value in line.settings.values() if isinstance(value, str))
    return "\n".join((line.name, line.run.id, *line.about.tags, line.about.note, *texts)).lower()


class RunQuery(msgspec.Struct, frozen=True):
    """All terms of a search; all must fit."""

    terms: tuple[SearchTerm, ...] = ()
    problem: str = ""
    """A sentence where a term cannot be meant so; it is then looked for as a text."""

    def fits(self, line: RunSummary) -> bool:
        """Whether a run meets every term."""
        return all(term.fits(line) for term in self.terms)


def parse_query(text: str) -> RunQuery:
    """Read a search; nothing that is typed is an error."""
    terms, problem = [], ""
    for word in _WORD.findall(text):
        negated = word.startswith("-") and len(word) > 1
        bare = word.removeprefix("-") if negated else word
        found = _TERM.fullmatch(bare)
        if found is None:
            terms.append(SearchTerm("", "", _plain(bare), negated))
            continue
        key, sign, value = found[1].lower(), found[2], _plain(found[3])
        if not value:
            continue  # it is still being typed
        if sign in _SIGNS and _number(value) is None:
            problem = f'"{word}" compares with a number, and "{found[3]}" is none. Example: lr<1e-3'
            continue
        terms.append(SearchTerm(key, sign, value, negated))
    return RunQuery(tuple(terms), problem)


def _plain(text: str) -> str:
    return text.replace('"', "").lower()


class RunSearch:
    """Searches again and again over the same lines: their words are put together once."""

    def __init__(self) -> None:
        self._words: dict[int, tuple[RunSummary, str]] = {}

    def found(self, query: RunQuery, lines: list[RunSummary]) -> list[RunSummary]:
        """The runs that fit, in their order."""
        left = lines
        for term in query.terms:
            if term.key:
                left = [line for line in left if term.fits(line)]
            else:
                left = [line for line in left if (term.value in self._haystack(line)) != term.negated]
        return left

    def _haystack(self, line: RunSummary) -> str:
        known = self._words.get(id(line))
        if known is None or known[0] is not line:
            known = (line, haystack(line))
            self._words[id(line)] = known
        return known[1]

    def keep_only(self, lines: list[RunSummary]) -> None:
        """Forget the words of runs that are no longer listed."""
        if len(self._words) > 2 * len(lines) + 100:
            there = {id(line) for line in lines}
            self._words = {key: words for key, words in self._words.items() if key in there}
