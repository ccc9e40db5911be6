"""What of a conversation is learnt: what the model must write after the prompt that it is used with.

A chat template is a program: it may drop earlier reasoning, merge turns, open a block for the answer or end
the last turn otherwise. So each answer is rendered as it is asked for, and its part of the text is learnt.
"""

from __future__ import annotations

import dataclasses
import re
from collections import Counter
from collections.abc import Iterable, Sequence

from trainer_backend.tasks.causal_lm.templates import Template
from trainer_backend.tasks.causal_lm.turns import Dialogue, Turn, Unfit


@dataclasses.dataclass(frozen=True)
class Answer:
    """One answer in its text."""

    text: str
    """Up to the answer's end, which is the text's."""
    begin: int
    """Where what is learnt begins."""


@dataclasses.dataclass(frozen=True)
class Row:
    """A text, and what of it is learnt: spans of (begin, end), in order."""

    text: str
    spans: tuple[tuple[int, int], ...]


@dataclasses.dataclass(frozen=True)
class Specials:
    """A tokenizer's tokens that no text is cut within."""

    added: re.Pattern[str]
    """Any added token, such as <think> or <tool_call>."""
    one: re.Pattern[str]
    """A special token: what ends turns is among these."""
    run: re.Pattern[str]
    """Special tokens one behind another."""
    eos: str = ""

    @classmethod
    def of(cls, special: Iterable[str], added: Iterable[str] = (), eos: str = "") -> Specials:
        """By their texts; special tokens count as added."""
        special = tuple(special)
        one = _any_of(special)
        return cls(
            re.compile(_any_of((*special, *added))),
            re.compile(one),
            re.compile(rf"\s*(?:{one})+"),
            eos,
        )


def _any_of(tokens: Iterable[str]) -> str:
    longest_first = sorted(filter(None, set(tokens)), key=len, reverse=True)
    return "|".join(map(re.escape, longest_first)) or r"(?!)"


class Answers:
    """Finds the answers of dialogues under one template, and counts what is to be said."""

    def __init__(self, template: Template, specials: Specials) -> None:
        self._template = template
        self._specials = specials
        self.counts: Counter[str] = Counter()
        """How often each thing happened that a person should know, by its code."""

    def rows(self, dialogue: Dialogue, *, last_only: bool = False) -> list[Row]:
        """The rows of a dialogue. Raises Unfit with the reason where one cannot be made."""
        turns = dialogue.turns
        places = [place for place, turn in enumerate(turns) if turn.role == "assistant" and turn.learnt]
        empty = [place for place in places if turns[place].is_empty]
        self.counts["empty-answers"] += len(empty)
        places = [place for place in places if not turns[place].is_empty]
        if last_only:
            places = places[-1:]
        answers = []
        for place in places:
            if place == 0 and not self._can_begin(dialogue):
                self.counts["answers-without-prompt"] += 1
            else:
                answers.append(self._answer(dialogue, place))
        return _shared(answers)

    def _can_begin(self, dialogue: Dialogue) -> bool:
        """Whether the template can ask for an answer before anything was said."""
        try:
            self._template.render((), dialogue.tools, asks=True, thinks=None)
        except Unfit:
            return False
        return True

    def _answer(self, dialogue: Dialogue, place: int) -> Answer:
        text, begin = self._boundary(dialogue, place)
        end, is_closed = self._end(dialogue, place, text, begin)
        if is_closed:
            return Answer(text[:end], begin)
        self.counts["end-added" if self._specials.eos else "no-end"] += 1
        return Answer(text[:end] + self._specials.eos, begin)

    # ------------------------------------------------------------------------- where it begins

    def _boundary(self, dialogue: Dialogue, place: int) -> tuple[str, int]:
        """A text that holds the answer, and where its own part begins. Raises Unfit."""
        template, turns, tools = self._template, dialogue.turns, dialogue.tools
        before, until = turns[:place], turns[: place + 1]
        thinks = bool(turns[place].reasoning)
        ways = (thinks, None) if template.has_thinking_switch else (None,)
        first: tuple[str, str] | None = None
        for way in ways:
            text = template.render(until, tools, asks=False, thinks=way)
            prompt = template.render(before, tools, asks=True, thinks=way)
            if text.startswith(prompt):
                if way is not None:
                    self.counts["thinking-on" if way else "thinking-off"] += 1
                return text, len(prompt)
            first = first or (text, prompt)
        assert first is not None
        text, prompt = first
        conversation = template.render(before, tools, asks=False, thinks=ways[0])
        bound = self._content_start(dialogue, place, text, ways[0])
        if text.startswith(conversation):
            self.counts["other-opening"] += 1
            return text, self._common(text, prompt, bound)
        return self._behind_last_question(before, text, prompt, bound)

    def _content_start(self, dialogue: Dialogue, place: int, text: str, way: bool | None) -> int:  # noqa: FBT001
        """Where the answer's own words begin at the latest: where another answer's text parts from it."""
        turn = dialogue.turns[place]
        words = (turn.reasoning or turn.text).lstrip()
        if not words:
            return len(text)
        other = "0" if not words.startswith("0") else "1"
        reasoning = other if turn.reasoning else ""
        turns = (
            *dialogue.turns[:place],
            dataclasses.replace(turn, text=other, reasoning=reasoning, inline=""),
        )
        try:
            twin = self._template.render(turns, dialogue.tools, asks=False, thinks=way)
        except Unfit:
            return len(text)
        return common_length(text, twin)

    def _common(self, text: str, prompt: str, bound: int) -> int:
        """The longest common beginning, never beyond `bound` and never inside a special token."""
        common = min(common_length(text, prompt), bound)
        for written in (text, prompt):
            # A token that begins before the cut and ends behind it is not begun.
            for token in self._specials.added.finditer(written, max(0, common - 200)):
                if token.start() < common < token.end():
                    common = token.start()
        return common

    def _behind_last_question(
        self, before: Sequence[Turn], text: str, prompt: str, bound: int
    ) -> tuple[str, int]:
        """The prompt of use and the answer's part of a text that writes the conversation otherwise."""
        asked = next((turn for turn in reversed(before) if turn.role != "assistant"), None)
        words = asked.text.strip() if asked is not None else ""
        at, prompt_at = (
            written.rfind(words, 0, end) for written, end in ((text, bound), (prompt, len(prompt)))
        )
        if not words or at < 0 or prompt_at < 0:
            raise Unfit(
                "the chat template writes the conversation differently once it is answered, and the last"
                " question is not found in it"
            )
        rest, prompt_rest = text[at + len(words) :], prompt[prompt_at + len(words) :]
        self.counts["prompt-of-use"] += 1
        if rest.startswith(prompt_rest):
            return prompt + rest[len(prompt_rest) :], len(prompt)
        common = self._common(rest, prompt_rest, bound - at - len(words))
        kept = prompt[: prompt_at + len(words) + common]
        return kept + rest[common:], len(kept)

    # --------------------------------------------------------------------------- where it ends

    def _end(self, dialogue: Dialogue, place: int, text: str, begin: int) -> tuple[int, bool]:
        """Where the answer ends, and whether special tokens end it. Raises Unfit where parts are missing."""
        turn = dialogue.turns[place]
        at = self._behind_text(dialogue, place, text, begin)
        for call in turn.calls:
            found = text.find(call.name, begin)
            if found < 0:
                raise Unfit(
                    f"message {place + 1}: the chat template leaves out the tool call {call.name}."
                    " Use a template that knows tools"
                )
            at = max(at, text.rfind(call.name, begin) + len(call.name))
        if turn.reasoning and turn.reasoning.strip() not in text[begin:]:
            self.counts["thinking-dropped"] += 1
        runs = list(self._specials.run.finditer(text, at))
        if not runs:
            return (len(text.rstrip()) if turn.calls else at), False
        # Behind tool calls the first run may end a call: the turn ends where a plain answer's would.
        ends = [run for run in runs if self.turn_end and self.turn_end in run[0]]
        chosen = runs[0] if not turn.calls else ends[0] if ends else runs[-1]
        return chosen.end(), True

    def _behind_text(self, dialogue: Dialogue, place: int, text: str, begin: int) -> int:
        turn = dialogue.turns[place]
        words = turn.text.strip()
        if not words:
            return begin
        found = text.find(words, begin)
        if found < 0:
            raise Unfit(
                f"message {place + 1}: the chat template leaves out the answer's text"
                f" ({words[:40]!r}{' …' if len(words) > 40 else ''})"
            )
        if text.find(words, found + 1) >= 0:  # reasoning, or a special token, holds the same words
            found = self._last_place(dialogue, place, text, words)
        behind = found + len(words)
        trailing = turn.text[len(turn.text.rstrip()) :]
        return behind + common_length(text[behind:], trailing)

    def _last_place(self, dialogue: Dialogue, place: int, text: str, words: str) -> int:
        """Where the words stand as the answer: behind them, the text is that of another answer."""
        other = "Answer 9482" + ("1" if words[-1] != "1" else "2")
        twin_turn = dataclasses.replace(dialogue.turns[place], text=other, inline="")
        twin = self._template.render(
            (*dialogue.turns[:place], twin_turn),
            dialogue.tools,
            asks=False,
            thinks=self._way(dialogue.turns[place]),
        )
        behind = common_length(text[::-1], twin[::-1])
        return text.rfind(words, 0, len(text) - behind)

    def _way(self, turn: Turn) -> bool | None:
        return bool(turn.reasoning) if self._template.has_thinking_switch else None

    @property
    def turn_end(self) -> str:
        """The special token that a plain answer ends with under this template; empty for none."""
        if not hasattr(self, "_ends_with"):
            found = ""
            try:
                text = self._template.render(
                    (Turn("user", "Question 7351?"), Turn("assistant", "Answer 9482.")),
                    (),
                    asks=False,
                    thinks=None,
                )
                run = self._specials.run.match(text, text.rindex("Answer 9482.") + len("Answer 9482."))
                if run is not None:
                    first = self._specials.one.search(run[0])
                    found = first[0] if first is not None else ""
            except (Unfit, ValueError):
                pass
            self._ends_with = found
        return self._ends_with


def _shared(answers: Sequence[Answer]) -> list[Row]:
    """Answers whose text is the beginning of a later answer's share its row."""
    rows: list[Row] = []
    taken = [False] * len(answers)
    for last in range(len(answers) - 1, -1, -1):
        if taken[last]:
            continue
        text = answers[last].text
        spans = []
        for number in range(last + 1):
            answer = answers[number]
            if not taken[number] and text.startswith(answer.text) and answer.begin < len(answer.text):
                taken[number] = True
                spans.append((answer.begin, len(answer.text)))
        rows.append(Row(text, tuple(spans)))
    return rows[::-1]


def common_length(first: str, second: str) -> int:
    """Characters that two texts begin with alike."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if first[low:middle] == second[low:middle] else (low, middle - 1)
    return low
