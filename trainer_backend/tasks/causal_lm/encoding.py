"""Tokens and loss masks of records: conversations, prompts with answers, plain text.

Letters: t tokens of a sample.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any, Final

import torch

from trainer_backend.errors import UsageError
from trainer_backend.kinds.causal_lm import CausalLMData, CausalLMTask
from trainer_backend.tasks.built_in import ReportWarning
from trainer_backend.tasks.causal_lm.records import Broken, TextRecord

PLAIN_CHAT_TEMPLATE: Final = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
"""For tokenizers that bring none; the run says that it is used."""


@dataclasses.dataclass(frozen=True)
class Encoded:
    """Samples end to end, so that workers share them without pickling millions of lists."""

    tokens: torch.Tensor
    """int32 (all t,)"""
    has_loss: torch.Tensor
    """bool (all t,): whether the token is to be predicted."""
    starts: torch.Tensor
    """int64 (samples + 1,)"""

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


class Encoder:
    """Turns records into tokens with one tokenizer and one set of fields."""

    def __init__(self, tokenizer: Any, task: CausalLMTask, data: CausalLMData, warn: ReportWarning) -> None:  # noqa: ANN401
        self._tokenizer = tokenizer
        self._task = task
        self._data = data
        self._warn = warn
        self._eos = [] if tokenizer.eos_token_id is None else [tokenizer.eos_token_id]
        self._template = getattr(tokenizer, "chat_template", None)

    def encode(self, records: Iterable[TextRecord | Broken], what: str) -> Encoded:
        """All samples with at least one token to predict. Raises UsageError at a broken line under "stop"."""
        tokens: list[list[int]] = []
        masks: list[list[bool]] = []
        broken, cut, silent = 0, 0, 0
        for record in records:
            found = record if isinstance(record, Broken) else self._encode(record)
            if isinstance(found, Broken):
                if self._data.broken == "stop":
                    message = f'{found.place}: {found.reason}. Mend the line, or set data.broken = "skip".'
                    raise UsageError(message)
                broken += 1
                continue
            ids, mask = found
            cut += len(ids) > self._task.max_length
            ids, mask = ids[: self._task.max_length], mask[: self._task.max_length]
            if not any(mask[1:]):  # the first token is predicted by nothing
                silent += 1
                continue
            tokens.append(ids)
            masks.append(mask)
        self._say(what, broken, cut, silent)
        if not tokens:
            message = (
                f"The {what} data has no sample with a token to learn from ({broken} broken,"
                f" {silent} without an answer). Check data.path and the names of the fields."
            )
            raise UsageError(message)
        starts = torch.tensor([0, *map(len, tokens)]).cumsum(0)
        flat = torch.tensor([token for ids in tokens for token in ids], dtype=torch.int32)
        return Encoded(flat, torch.tensor([bit for mask in masks for bit in mask]), starts)

    def _say(self, what: str, broken: int, cut: int, silent: int) -> None:
        if broken:
            self._warn("records-skipped", {"data": what, "count": broken})
        if cut:
            self._warn("records-cut", {"data": what, "count": cut, "max_length": self._task.max_length})
        if silent:
            self._warn("records-without-answer", {"data": what, "count": silent})

    def _encode(self, record: TextRecord) -> tuple[list[int], list[bool]] | Broken:
        fields, data = record.fields, self._data
        if data.messages_field in fields:
            return self._conversation(record.place, fields[data.messages_field])
        if data.prompt_field in fields and data.answer_field in fields:
            prompt, answer = fields[data.prompt_field], fields[data.answer_field]
            if not isinstance(prompt, str) or not isinstance(answer, str):
                return Broken(record.place, f"{data.prompt_field} and {data.answer_field} must be text")
            before = self._tokenizer(prompt)["input_ids"]
            if before and before[-1:] == self._eos:  # some tokenizers end every text
                before = before[:-1]
            after = self._tokenizer(answer, add_special_tokens=False)["input_ids"] + self._eos
            return before + after, [self._task.train_on == "everything"] * len(before) + [True] * len(after)
        if data.text_field in fields:
            text = fields[data.text_field]
            if not isinstance(text, str):
                return Broken(record.place, f"{data.text_field} must be text")
            ids = self._tokenizer(text)["input_ids"]
            ids = ids if ids[-1:] == self._eos else ids + self._eos
            return ids, [True] * len(ids)
        wanted = f"{data.messages_field}, {data.prompt_field} and {data.answer_field}, or {data.text_field}"
        return Broken(record.place, f"has none of the fields {wanted} (it has {', '.join(fields) or 'none'})")

    def _conversation(self, place: str, messages: Any) -> tuple[list[int], list[bool]] | Broken:  # noqa: ANN401
        if not _is_conversation(messages):
            return Broken(place, "a conversation must be a list of tables with role and content, both text")
        if self._template is None:
            self._template = PLAIN_CHAT_TEMPLATE
            self._warn("no-chat-template", {})
        ids = self._apply(messages, answering=False)
        if self._task.train_on == "everything":
            return ids, [True] * len(ids)
        mask = [False] * len(ids)
        for turn, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            # The answer is what the template adds to the conversation so far, whatever the template is.
            before = self._apply(messages[:turn], answering=True)
            until = self._apply(messages[: turn + 1], answering=False)
            if ids[: len(until)] != until or until[: len(before)] != before:
                return Broken(
                    place, "the chat template rewrites earlier turns, so answers cannot be told apart"
                )
            mask[len(before) : len(until)] = [True] * (len(until) - len(before))
        return ids, mask

    def _apply(self, messages: list[dict[str, str]], *, answering: bool) -> list[int]:
        if not messages:
            return []
        text = self._tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=answering, chat_template=self._template
        )
        # The template brings its own special tokens.
        ids: list[int] = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids


def _is_conversation(messages: Any) -> bool:  # noqa: ANN401 - JSON
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(
            isinstance(message, dict)
            and isinstance(message.get("role"), str)
            and isinstance(message.get("content"), str)
            for message in messages
        )
    )
