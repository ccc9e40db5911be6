"""What a record means: preference pair, conversation, instruction, prompt with answer, or text.

Each file has one form, found on its first records. The tables below are tried in order.
"""

from __future__ import annotations

import dataclasses
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, Final, Literal, TypeAlias, assert_never

from trainer_backend.errors import UsageError
from trainer_backend.kinds.causal_lm import CausalLMData
from trainer_backend.tasks.causal_lm.raw_text import Broken, DataRecord, Item
from trainer_backend.tasks.causal_lm.turns import (
    Dialogue,
    Turn,
    Unfit,
    parsed,
    refuse_media,
    tools_of,
    turns_of,
)

LOOKED_AT: Final = 1000
"""Records of a file by which its form is told."""
Form: TypeAlias = Literal["preference", "conversation", "alpaca", "prompt", "text"]
MESSAGES: Final = ("messages", "conversations", "conversation", "dialog", "chat")
INSTRUCTION: Final = ("instruction",)
INPUT: Final = ("input", "context")
ALPACA_OUTPUT: Final = ("output", "response", "answer")
PROMPT: Final = ("prompt", "question", "query", "input")
COMPLETION: Final = ("completion", "answer", "response", "output", "target")
TEXT: Final = ("text", "content", "document", "body")
SYSTEM: Final = ("system", "system_prompt")
BY_FOLDER: Final = "folder"
"""As `data.validation_group`: the records of one folder belong together."""
ORDER: Final[tuple[Form, ...]] = ("preference", "conversation", "alpaca", "prompt", "text")
LOOKED_FOR: Final = (
    "messages (or conversations), instruction and output, prompt and completion, question and answer, or text"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Text:
    """Plain text, or a part of it."""

    place: str
    text: str
    continues: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class LeftOut:
    """A record that is passed over by rule, and counted."""

    place: str
    why: Literal["not-chosen", "empty"]


@dataclasses.dataclass(frozen=True, slots=True)
class ReadAs:
    """The form of a file, said once."""

    file: str
    form: Form
    fields: str


Sample: TypeAlias = Dialogue | Text | LeftOut | ReadAs | Broken


class Reading:
    """Turns records into samples by the fields that a recipe names."""

    def __init__(self, data: CausalLMData) -> None:
        self._names: dict[str, str] = {str(name): field for name, field in data.fields.items()}
        self._preference = data.preference
        self._group = data.validation_group

    def samples(self, file: str, items: Iterator[Item]) -> Iterator[tuple[Sample, str]]:
        """A `ReadAs`, then one sample for each record of a file, each with the name of its group."""
        head = list(islice(items, LOOKED_AT))
        form = self._form_of(head)
        if form is not None:
            first = next(
                item for item in head if isinstance(item, DataRecord) and self._fits(item.fields) == form
            )
            yield ReadAs(file, form, self._meaning(form, first.fields)), ""
        for item in chain(head, items):
            yield self._with_group(item, self._sample(item, form), file)

    def _with_group(self, item: Item, sample: Sample, file: str) -> tuple[Sample, str]:
        name = self._group
        if not name or not isinstance(item, DataRecord):
            return sample, ""
        value = item.fields.get(name)
        if value is None and name == BY_FOLDER:
            value = os.path.dirname(file)  # noqa: PTH120 - a text, which may be a hub id
        if value is None:
            return Broken(item.place, f"has no field {name}, by which data.validation_group holds out"), ""
        return sample, f"{name}={value}"

    def _form_of(self, head: Iterable[Item]) -> Form | None:
        """What most of the first records are; of equals the one that stands first in the table."""
        counts = Counter(self._fits(item.fields) for item in head if isinstance(item, DataRecord))
        counts.pop(None, None)
        known = [form for form in ORDER if counts[form]]
        return max(known, key=lambda form: counts[form]) if known else None

    def _fits(self, fields: Mapping[str, Any]) -> Form | None:
        """The first form of the table that a record fits; fields that the recipe names come before all."""
        names = self._names
        if "messages" in names and names["messages"] in fields:
            return "conversation"
        if "completion" in names and names["completion"] in fields:
            return "prompt"
        if "text" in names and names["text"] in fields:
            return "text"
        if _is_preference(fields):
            return "preference"
        if _has(fields, MESSAGES):
            return "conversation"
        if _has(fields, INSTRUCTION) and _has(fields, ALPACA_OUTPUT):
            return "alpaca"
        if self._has_prompt(fields) and _has(fields, COMPLETION):
            return "prompt"
        return "text" if _has(fields, TEXT) else None

    def _has_prompt(self, fields: Mapping[str, Any]) -> bool:
        return _has(fields, (self._names["prompt"],) if "prompt" in self._names else PROMPT)

    def _key(self, fields: Mapping[str, Any], name: str, group: tuple[str, ...]) -> str:
        """Which field of a group a record has; empty for none. Raises Unfit where two differ."""
        if name in self._names:
            return self._names[name] if fields.get(self._names[name]) is not None else ""
        present = [key for key in group if fields.get(key) not in (None, "")]
        if not present:
            return next((key for key in group if key in fields), "")
        other = next((key for key in present[1:] if fields[key] != fields[present[0]]), None)
        if other is not None:
            raise Unfit(
                f"{present[0]} and {other} both could be the {name}, and they differ."
                f' Name the right one: data.fields = {{ {name} = "{present[0]}" }}'
            )
        return present[0]

    def _meaning(self, form: Form, fields: Mapping[str, Any]) -> str:
        try:
            match form:
                case "preference":
                    return "prompt → chosen"
                case "conversation":
                    return self._key(fields, "messages", MESSAGES)
                case "alpaca":
                    output = self._key(fields, "completion", ALPACA_OUTPUT)
                    inner = self._key(fields, "input", INPUT)
                    return f"instruction{' + ' + inner if inner else ''} → {output}"
                case "prompt":
                    answer = self._key(fields, "completion", COMPLETION)
                    return f"{self._prompt_key(fields, answer)} → {answer}"
                case "text":
                    return self._key(fields, "text", TEXT)
        except Unfit:  # said of each record, with its place
            return "unclear"
        assert_never(form)

    def _prompt_key(self, fields: Mapping[str, Any], answer: str) -> str:
        return self._key(fields, "prompt", tuple(key for key in PROMPT if key != answer))

    def _sample(self, item: Item, form: Form | None) -> Sample:
        if isinstance(item, Broken):
            return item
        try:
            return self._made(item, self._checked(item.fields, form))
        except Unfit as error:
            return Broken(item.place, str(error))

    def _checked(self, fields: Mapping[str, Any], form: Form | None) -> Form:
        """The form of a record, which must be that of its file. Raises Unfit."""
        found, keys = self._fits(fields), ", ".join(fields) or "none"
        if found is None:
            raise Unfit(
                f"has none of the known fields {LOOKED_FOR} (it has {keys}). Name them in data.fields"
            )
        if found != form:
            raise Unfit(
                f"is of the form {found}, while this file was read as {form}"
                f" ({self._expected(form)}); it has {keys}"
            )
        refuse_media(fields)
        return found

    @staticmethod
    def _expected(form: Form | None) -> str:
        return {
            "preference": "chosen and rejected",
            "conversation": "messages",
            "alpaca": "instruction and output",
            "prompt": "prompt and completion",
            "text": "text",
        }[form or "text"]

    def _made(self, record: DataRecord, form: Form) -> Sample:
        fields, place = record.fields, record.place
        match form:
            case "text":
                text = fields[self._key(fields, "text", TEXT)]
                if not isinstance(text, str):
                    raise Unfit("the text must be text")
                return Text(place, text, record.continues)
            case "conversation":
                return self._dialogue(
                    place, self._turns(fields[self._key(fields, "messages", MESSAGES)]), fields
                )
            case "alpaca":
                return self._alpaca(place, fields)
            case "prompt":
                answer = self._key(fields, "completion", COMPLETION)
                asked = self._prompt(fields, self._prompt_key(fields, answer))
                plain = answer == "completion" and isinstance(fields[answer], str) and len(asked) == 1
                plain = plain and isinstance(fields[self._prompt_key(fields, answer)], str)
                return self._answered(place, asked, fields[answer], fields, continuation=plain)
            case "preference":
                return self._chosen(place, fields)
        assert_never(form)

    def _turns(self, messages: Any) -> tuple[Turn, ...]:  # noqa: ANN401 - JSON
        names = self._names
        return turns_of(messages, role_key=names.get("role", ""), content_key=names.get("content", ""))

    def _dialogue(
        self, place: str, turns: tuple[Turn, ...], fields: Mapping[str, Any], *, continuation: bool = False
    ) -> Dialogue:
        system = self._key(fields, "system", SYSTEM)
        text = fields[system] if system else ""
        if isinstance(text, str) and text.strip() and turns[0].role != "system":
            turns = (Turn("system", text), *turns)
        tools = self._key(fields, "tools", ("tools", "functions"))
        return Dialogue(place, turns, tools_of(fields[tools]) if tools else (), continuation=continuation)

    def _alpaca(self, place: str, fields: Mapping[str, Any]) -> Sample:
        output = self._key(fields, "completion", ALPACA_OUTPUT)
        inner = self._key(fields, "input", INPUT)
        asked = [fields["instruction"], fields[inner] if inner else ""]
        prompt = "\n".join(part for part in (_text(part, "instruction") for part in asked) if part)
        history: list[Turn] = []
        for pair in parsed(fields.get("history")) or []:
            if not isinstance(pair, Sequence) or isinstance(pair, str) or len(pair) != 2:
                raise Unfit("history must be a list of pairs of prompt and answer")
            history += [Turn("user", _text(pair[0], "history")), Turn("assistant", _text(pair[1], "history"))]
        return self._answered(place, (*history, Turn("user", prompt)), fields[output], fields)

    def _prompt(self, fields: Mapping[str, Any], key: str) -> tuple[Turn, ...]:
        prompt = fields.get(key) if key else None
        if isinstance(prompt, list):  # a conversation up to the answer: its own answers are context
            return tuple(dataclasses.replace(turn, learnt=False) for turn in self._turns(prompt))
        return (Turn("user", _text(prompt, key or "the prompt")),)

    def _answered(
        self,
        place: str,
        asked: tuple[Turn, ...],
        answer: Any,  # noqa: ANN401 - JSON
        fields: Mapping[str, Any],
        *,
        continuation: bool = False,
    ) -> Sample:
        if isinstance(answer, (list, Mapping)):
            turns = self._turns(answer)
        else:
            turns = self._turns([{"role": "assistant", "content": _text(answer, "the answer")}])
        if all(turn.is_empty for turn in turns):
            return LeftOut(place, "empty")
        return self._dialogue(place, (*asked, *turns), fields, continuation=continuation)

    def _chosen(self, place: str, fields: Mapping[str, Any]) -> Sample:
        if self._preference != "chosen":
            raise PreferenceDataError(
                f"{place}: these are preference pairs (chosen and rejected answers), and this kind of task"
                ' trains on answers alone. Set data.preference = "chosen" to train on the chosen answers'
                " as supervised data."
            )
        mark = fields.get("kto_tag", fields.get("label"))
        key = next((key for key in fields if key.startswith("chosen")), "")
        if not key:
            if not mark:
                return LeftOut(place, "not-chosen")
            if _has(fields, MESSAGES):
                turns = self._turns(fields[self._key(fields, "messages", MESSAGES)])
                return self._dialogue(place, turns, fields)
            if _has(fields, INSTRUCTION):
                return self._alpaca(place, fields)
            key = self._key(fields, "completion", COMPLETION)
        before: tuple[Turn, ...] = ()
        if _has(fields, MESSAGES):
            turns = self._turns(fields[self._key(fields, "messages", MESSAGES)])
            before = tuple(dataclasses.replace(turn, learnt=False) for turn in turns)
        elif not (isinstance(fields[key], list) and len(fields[key]) > 1):
            asked = self._key(fields, "prompt", (*PROMPT, *INSTRUCTION))
            before = self._prompt(fields, asked)
        return self._answered(place, before, fields[key], fields)


class PreferenceDataError(UsageError):
    """A whole data set is refused, whatever becomes of bad records."""


def _has(fields: Mapping[str, Any], group: tuple[str, ...]) -> bool:
    return any(fields.get(key) is not None for key in group)


def _is_preference(fields: Mapping[str, Any]) -> bool:
    pair = any(key.startswith("chosen") and value is not None for key, value in fields.items())
    if pair and any(key.startswith("rejected") for key in fields):
        return True
    if isinstance(fields.get("kto_tag"), bool):
        return True
    beside = _has(fields, PROMPT) or _has(fields, MESSAGES)
    return isinstance(fields.get("label"), bool) and beside and not pair


def _text(value: Any, what: str) -> str:  # noqa: ANN401 - JSON
    if value is None:
        return ""
    if not isinstance(value, str):
        raise Unfit(f"{what} must be text, and is {type(value).__name__}")
    return value
