"""Tokens and loss masks of samples: conversations, plain text, each no longer than the recipe allows.

Letters: t tokens of a sample.
"""

from __future__ import annotations

import dataclasses
from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import torch

from trainer_backend.errors import UsageError
from trainer_backend.kinds.causal_lm import CausalLMData, CausalLMTask
from trainer_backend.protocol import Scalar
from trainer_backend.tasks.built_in import ReportWarning
from trainer_backend.tasks.causal_lm.dialogues import (
    DialogueTokenizer,
    TokenizedDialogue,
    processes,
    tokenized_samples,
)
from trainer_backend.tasks.causal_lm.forms import LeftOut, ReadAs, Sample, Text
from trainer_backend.tasks.causal_lm.raw_text import Broken
from trainer_backend.tasks.causal_lm.spans import Tokens, specials_of
from trainer_backend.tasks.causal_lm.templates import Template
from trainer_backend.tasks.causal_lm.turns import Dialogue, Unfit


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Samples end to end, so that workers share them without pickling millions of lists."""

    tokens: torch.Tensor
    """int32 (all t,)"""
    has_loss: torch.Tensor
    """bool (all t,): whether the token is to be predicted."""
    starts: torch.Tensor
    """int64 (samples + 1,)"""
    groups: torch.Tensor
    """int64 (samples,): samples of one group (a record, an author) are held out together or not at all."""
    sources: torch.Tensor
    """int64 (samples, 2): number of the file in `files`, and line or row; -1 where there is none."""
    files: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.starts.numel() - 1

    def lengths(self) -> list[int]:
        """Tokens of each sample."""
        lengths: list[int] = self.starts.diff().tolist()
        return lengths

    def sample(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Tokens int64 (t,), has_loss bool (t,)."""
        begin, end = int(self.starts[index]), int(self.starts[index + 1])
        return self.tokens[begin:end].long(), self.has_loss[begin:end]

    def source(self, index: int) -> str:
        """`file:line` of a sample."""
        file, line = self.sources[index].tolist()
        name = self.files[file]
        return f"{name}:{line}" if line >= 0 else name

    def chosen(self, numbers: Sequence[int]) -> Encoded:
        """Some of the samples, in the order of `numbers`; one may come several times."""
        picked = torch.tensor(numbers, dtype=torch.int64)
        spans = [slice(int(self.starts[number]), int(self.starts[number + 1])) for number in numbers]
        none = self.tokens[:0]
        return Encoded(
            torch.cat([self.tokens[span] for span in spans] or [none]),
            torch.cat([self.has_loss[span] for span in spans] or [none.bool()]),
            torch.tensor([0, *(span.stop - span.start for span in spans)]).cumsum(0),
            self.groups[picked],
            self.sources[picked],
            self.files,
        )


NAMED: Final = 1 << 40
"""Numbers of groups that have a name begin here; below are records, each by itself."""


class _Gathered:
    """Samples while they are read: four bytes a token, not a list of numbers."""

    def __init__(self) -> None:
        self.tokens, self.mask, self.starts = array("i"), bytearray(), array("q", [0])
        self.groups, self.sources = array("q"), array("q")
        self.files: dict[str, int] = {}

    def add(self, ids: Sequence[int], mask: Sequence[int], group: int, place: str) -> None:
        """Append a sample's tokens and loss weights."""
        self.tokens.extend(ids)
        self.mask.extend(mask)
        self.starts.append(len(self.tokens))
        self.groups.append(group)
        file, colon, line = place.rpartition(":")
        if not colon or not line.isdecimal():
            file, line = place, "-1"
        self.sources.extend((self.files.setdefault(file, len(self.files)), int(line)))

    def done(self) -> Encoded:
        """All of them. The arrays are lent to torch, not copied."""
        return Encoded(
            torch.frombuffer(self.tokens, dtype=torch.int32),
            torch.frombuffer(self.mask, dtype=torch.bool),
            torch.frombuffer(self.starts, dtype=torch.int64),
            torch.frombuffer(self.groups, dtype=torch.int64),
            torch.frombuffer(self.sources, dtype=torch.int64).view(-1, 2),
            tuple(self.files),
        )


class Encoder:
    """Turns samples into tokens with one tokenizer and one recipe."""

    def __init__(
        self,
        tokenizer: Any,  # noqa: ANN401 - any tokenizer class
        task: CausalLMTask,
        data: CausalLMData,
        warn: ReportWarning,
        *,
        folder: Path,
        vocabulary: int | None = None,
    ) -> None:
        self._tokenizer, self._task, self._data, self._warn = tokenizer, task, data, warn
        self._tokens = Tokens(tokenizer)
        self._eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        self._template = Template(tokenizer, folder / task.chat_template if task.chat_template else None)
        self._dialogues = DialogueTokenizer(
            tokenizer, self._template, self._tokens, specials_of(tokenizer), task
        )
        self._vocabulary = vocabulary
        self.template = self._template
        self.read: Counter[str] = Counter()
        """Records that were read so far, and `left-out`, `cut`, `dropped`, `split` ones among them."""
        self._begin()

    def _begin(self) -> None:
        self._gathered = _Gathered()
        self._counts: Counter[str] = Counter()
        self._held = array("i")
        self._groups: dict[str, int] = {}
        self._read_as: dict[tuple[str, str], list[str]] = {}

    def encode(self, samples: Iterable[tuple[Sample, str]], what: str) -> Encoded:
        """All samples with at least one token to predict, each with the name of its group ("": its own).

        Raises UsageError at a broken record under "stop", and where nothing is left.
        """
        self._begin()
        workers = processes()
        for sample, group, tokenized in tokenized_samples(samples, self._dialogues.tokenized, workers):
            match sample:
                case ReadAs():
                    self._read_as.setdefault((sample.form, sample.fields), []).append(sample.file)
                case LeftOut():
                    self._counts[sample.why] += 1
                    self._counts["passed-over"] += 1
                case Broken():
                    self._broken(sample)
                    self._counts["passed-over"] += 1
                case Dialogue() | Text():
                    self._take(sample, group, tokenized)
        self._say(what)
        self._add_up()
        if len(self._gathered.starts) == 1:
            raise UsageError(self._nothing(what))
        return self._gathered.done()

    def _add_up(self) -> None:
        counts = self._counts
        left_out = sum(counts[why] for why in ("broken", "not-chosen", "empty", "silent", "dropped"))
        self.read.update({"records": counts["records"] + counts["passed-over"], "left-out": left_out})
        self.read.update({why: counts[why] for why in ("cut", "dropped", "split", "dialogues")})

    def _broken(self, found: Broken) -> None:
        if self._data.broken == "stop":
            message = f'{found.place}: {found.reason}. Correct the record, or set data.broken = "skip".'
            raise UsageError(message)
        self._counts["broken"] += 1

    def _take(self, sample: Dialogue | Text, group: str, tokenized: TokenizedDialogue | None) -> None:
        number = self._counts["records"]  # a record's samples are held out together
        if group:
            number = NAMED + self._groups.setdefault(group, len(self._groups))
        try:
            if isinstance(sample, Text):
                self._text(sample, number)
            elif tokenized is not None:
                self._dialogue(sample, number, tokenized)
        except Unfit as error:
            self._broken(Broken(sample.place, str(error)))
        self._counts["records"] += not (isinstance(sample, Text) and sample.continues)

    # ------------------------------------------------------------------------ plain text

    def _text(self, sample: Text, group: int) -> None:
        first = not self._held
        starts_itself = bool(self._tokenizer.bos_token) and sample.text.startswith(self._tokenizer.bos_token)
        ids = (
            self._tokens.ids(sample.text)
            if starts_itself or not first
            else self._tokenizer(sample.text, verbose=False)["input_ids"]
        )
        if self._eos and ids[-1:] == self._eos:  # some tokenizers end every text
            ids = ids[:-1]
        self._held.extend(ids)
        if sample.continues:
            return
        whole, self._held = self._held, array("i")
        if not whole:
            self._counts["empty"] += 1
            return
        whole.extend(self._eos)
        self._blocks(whole, group, sample.place)

    def _blocks(self, ids: array[int], group: int, place: str) -> None:
        longest = self._task.max_length
        if len(ids) > longest:
            match self._task.long:
                case "drop":
                    self._counts["dropped"] += 1
                    return
                case "cut":
                    self._counts["cut"] += 1
                    ids = ids[:longest]
                case "split":
                    self._counts["split"] += 1
        for begin in range(0, len(ids), longest):
            block = ids[begin : begin + longest]
            if len(block) == 1:  # nothing comes before it by which to predict it
                self._counts["rest-of-one" if begin else "silent"] += 1
                continue
            self._add(block, [True] * len(block), group, place)

    # --------------------------------------------------------------------- conversations

    def _dialogue(self, sample: Dialogue, group: int, found: TokenizedDialogue) -> None:
        self._counts.update(found.counts)
        if found.unfit:
            raise Unfit(found.unfit)
        self._counts["dialogues"] += bool(found.rows)
        self._counts["rows"] += len(found.rows)
        if not found.rows:
            self._counts["silent"] += 1
        for ids, mask in found.rows:
            self._row(ids, mask, group, sample.place)

    def _row(self, ids: array[int], mask: bytes, group: int, place: str) -> None:
        if len(ids) > self._task.max_length:
            if self._task.long == "drop":
                self._counts["dropped"] += 1
                return
            ids, mask = self._shortened(ids, mask)
            self._counts["cut"] += 1
        if not any(mask[1:]):  # the first token is predicted by nothing
            self._counts["silent"] += 1
            return
        self._add(ids, mask, group, place)

    def _shortened(self, ids: array[int], mask: bytes) -> tuple[array[int], bytes]:
        """Without its beginning; nothing where the last answer does not fit whole behind one token."""
        begin = len(ids) - self._task.max_length
        last = len(mask) - 1 - mask[::-1].index(True)
        first = last - next((back for back, bit in enumerate(mask[last::-1]) if not bit), last + 1) + 1
        if self._task.train_on == "everything" or first > begin:
            return ids[begin:], mask[begin:]
        return ids[:0], b""

    def _add(self, ids: Sequence[int], mask: Sequence[int], group: int, place: str) -> None:
        highest = max(ids)
        if self._vocabulary is not None and highest >= self._vocabulary:
            token = self._tokenizer.convert_ids_to_tokens(highest)
            message = (
                f"{place}: the token {token!r} has the id {highest}, and the model's embedding has"
                f" {self._vocabulary} rows. Use the model's own tokenizer, or set"
                " task.resize_embedding = true to add rows."
            )
            raise UsageError(message)
        self._gathered.add(ids, mask, group, place)

    # ------------------------------------------------------------------------- what is said

    def _nothing(self, what: str) -> str:
        counts = self._counts
        return (
            f"The {what} data has no sample with a token to learn from ({counts['broken']} broken,"
            f" {counts['silent'] + counts['empty']} without an answer, {counts['dropped']} too long)."
            " Check data.path and the names of the fields."
        )

    def _say(self, what: str) -> None:
        counts, longest = self._counts, self._task.max_length
        codes = {
            "records-skipped": counts["broken"],
            "records-not-chosen": counts["not-chosen"],
            "answers-empty": counts["empty"] + counts["empty-answers"],
            "answers-without-prompt": counts["answers-without-prompt"],
            "records-without-answer": counts["silent"],
            "special-tokens-in-texts": counts["specials-in-texts"],
            "thinking-on": counts["thinking-on"],
            "thinking-off": counts["thinking-off"],
            "thinking-dropped": counts["thinking-dropped"],
            "template-opens-block": counts["other-opening"],
            "template-rewrites-prompt": counts["prompt-of-use"],
            "template-without-end": counts["end-added"],
            "answers-without-end": counts["no-end"],
            "prompts-joined": counts["joined"],
            "text-rest-of-one": counts["rest-of-one"],
        }
        for (form, fields), files in self._read_as.items():
            said: dict[str, Scalar] = {"data": what, "files": len(files), "first": Path(files[0]).name}
            self._warn("read-as", said | {"form": form, "fields": fields})
        if counts["plain"]:
            self._warn("no-chat-template", {})
        elif counts["dialogues"] and self._template.is_dated:
            self._warn("template-writes-date", {})
        for code, count in codes.items():
            if count:
                self._warn(code, {"data": what, "count": count})
        for code, key in (("records-cut", "cut"), ("records-dropped", "dropped"), ("texts-split", "split")):
            if counts[key]:
                self._warn(code, {"data": what, "count": counts[key], "max_length": longest})
        if counts["rows"] > counts["dialogues"]:
            self._warn(
                "conversations-became-rows",
                {"data": what, "count": counts["dialogues"], "rows": counts["rows"]},
            )
