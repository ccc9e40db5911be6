"""Chat templates: which way of writing a message each understands, and what it makes of a dialogue."""

from __future__ import annotations

import dataclasses
import functools
import json
import re
from collections.abc import Iterable, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final

from trainer_backend.errors import UsageError
from trainer_backend.tasks.causal_lm.quick_template import QuickTemplate
from trainer_backend.tasks.causal_lm.turns import REASONING_KEYS, Call, Turn, Unfit

THINKING_SWITCH: Final = "enable_thinking"
PLAIN: Final = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] }}"
    "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
"""For tokenizers that bring none; the run says that it is used."""


@dataclasses.dataclass(frozen=True)
class Style:
    """One way of writing a message."""

    parts: bool = False
    """Content as a list of parts, not as text."""
    arguments_as_text: bool = False
    no_content: str | None = ""
    """What stands beside tool calls without text."""
    reasoning: str = REASONING_KEYS[0]
    """The key of reasoning; `inline`: in the content, between <think> and </think>."""
    keeps_inline: bool = True
    """Reasoning that stood in the text stays there: the template has no better place for it."""

    def message(self, turn: Turn) -> dict[str, Any]:
        """The message of a turn."""
        text, reasoning = turn.text, turn.reasoning
        if self.keeps_inline and turn.inline:
            text, reasoning = turn.inline, ""
        elif reasoning and self.reasoning == "inline":
            text, reasoning = f"<think>\n{reasoning}\n</think>\n\n{text}", ""
        content: Any = [{"type": "text", "text": text}] if self.parts else text
        if turn.calls and not text and self.no_content is None:
            content = None
        message: dict[str, Any] = {"role": turn.role, "content": content}
        if reasoning:
            message[self.reasoning] = reasoning
        if turn.calls:
            message["tool_calls"] = [self._call(call) for call in turn.calls]
        if turn.name:
            message["name"] = turn.name
        if turn.call_id:
            message["tool_call_id"] = turn.call_id
        return message

    def _call(self, call: Call) -> dict[str, Any]:
        arguments = call.arguments
        if self.arguments_as_text and not isinstance(arguments, str):
            arguments = json.dumps(arguments, ensure_ascii=False)
        called: dict[str, Any] = {"type": "function", "function": {"name": call.name, "arguments": arguments}}
        return called | ({"id": call.id} if call.id else {})


_COMMENT: Final = re.compile(r"\{#.*?#\}", re.DOTALL)
_ASKED, _SAID, _WHY = "Question 7351?", "Answer 9482.", "Because of 6173."
_PROBE: Final = (Turn("user", _ASKED), Turn("assistant", _SAID))
_REASONED: Final = (Turn("user", _ASKED), Turn("assistant", _SAID, reasoning=_WHY))
_CALLED: Final = (
    Turn("user", _ASKED),
    Turn("assistant", "", calls=(Call("probe_tool", {"number": "value 5294"}, "abcdef123"),)),
)
_TOOL: Final[dict[str, Any]] = {
    "type": "function",
    "function": {
        "name": "probe_tool",
        "description": "A probe.",
        "parameters": {
            "type": "object",
            "properties": {"number": {"type": "string", "description": "A number."}},
            "required": ["number"],
        },
    },
}


class Template:
    """A tokenizer's chat template, or the one that a recipe names, with the style that it understands."""

    def __init__(self, tokenizer: Any, file: Path | None = None) -> None:  # noqa: ANN401 - any tokenizer class
        self._tokenizer = tokenizer
        self._file = file
        self.is_plain = False
        """The tokenizer brings no template, and the recipe names none."""
        chosen = _read(file) if file is not None else getattr(tokenizer, "chat_template", None)
        if not chosen:
            self.is_plain, chosen = True, PLAIN
        self._chosen: Any = chosen
        text = chosen if isinstance(chosen, str) else "\n".join(map(str, chosen.values()))
        self.code = _COMMENT.sub("", text)
        """The template's source without its comments."""
        self._quick = QuickTemplate(tokenizer, chosen if isinstance(chosen, str) else None)

    @functools.cached_property
    def has_thinking_switch(self) -> bool:
        """Whether the template asks for `enable_thinking`."""
        return THINKING_SWITCH in self.code

    @property
    def is_dated(self) -> bool:
        """Whether the template writes today's date."""
        return "strftime_now" in self.code

    @functools.cached_property
    def style(self) -> Style:
        """The first style in which the template gives out again what a probe puts in."""
        written = (Style(parts=parts) for parts in (False, True))
        style = self._first(_PROBE, written, (_ASKED, _SAID)) or Style()
        # A template that knows such blocks takes reasoning in the text too; others must have a key for it.
        inline = ("inline",) * ("think>" in self.code)
        by_key = self._reasoned(style, (*REASONING_KEYS, *inline))
        keeps = by_key is None or self._reasoned(style, inline) is not None
        style = dataclasses.replace(by_key or style, keeps_inline=keeps)
        called = self._first(
            _CALLED,
            (
                dataclasses.replace(style, arguments_as_text=text, no_content=content)
                for text, content in product((False, True), ("", None))
            ),
            ("probe_tool", "value 5294"),
        )
        return called or style

    def _reasoned(self, style: Style, keys: Sequence[str]) -> Style | None:
        """The first place for reasoning that comes out again."""
        styles = (dataclasses.replace(style, reasoning=key) for key in keys)
        return self._first(_REASONED, styles, (_ASKED, _SAID, _WHY))

    def _first(self, turns: Sequence[Turn], styles: Iterable[Style], wanted: tuple[str, ...]) -> Style | None:
        tools = [_TOOL] if any(turn.calls for turn in turns) else []
        for style in styles:
            try:
                text = self._render([style.message(turn) for turn in turns], tools, asks=False, thinks=None)
                before = self._render(
                    [style.message(turn) for turn in turns[:1]], tools, asks=False, thinks=None
                )
            except Unfit:
                continue
            # What is declared before the answer proves nothing about the answer.
            own = text.removeprefix(before)
            there = all(word in (text if word == _ASKED else own) for word in wanted)
            # Twice the end of reasoning: the template wrote an empty one of its own before it.
            if there and own.count("</think>") <= 1 and "None" not in own and "'type': 'text'" not in text:
                return style
        return None

    def render(
        self, turns: Sequence[Turn], tools: Sequence[dict[str, Any]], *, asks: bool, thinks: bool | None
    ) -> str:
        """What the template makes of turns; `asks`: followed by what asks for an answer. Raises Unfit."""
        return self._render([self.style.message(turn) for turn in turns], tools, asks=asks, thinks=thinks)

    def _render(
        self,
        messages: list[dict[str, Any]],
        tools: Sequence[dict[str, Any]],
        *,
        asks: bool,
        thinks: bool | None,
    ) -> str:
        switch = {} if thinks is None else {THINKING_SWITCH: thinks}
        try:
            if self._quick.takes(messages, tools):
                return self._quick.render(messages, add_generation_prompt=asks, **switch)
            text: str = self._tokenizer.apply_chat_template(
                messages,
                tools=list(tools) or None,
                tokenize=False,
                add_generation_prompt=asks,
                chat_template=self._chosen if isinstance(self._chosen, str) else None,
                **switch,
            )
        except Exception as error:
            where = f"{self._file}: " if self._file is not None else ""
            line = getattr(error, "lineno", None)
            at = f" (line {line} of the template)" if line else ""
            raise Unfit(f"{where}the chat template refuses this conversation: {error}{at}") from error
        return text


def _read(file: Path) -> str:
    try:
        return file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
        message = f"task.chat_template = {file} cannot be read: {reason}. Choose a .jinja file."
        raise UsageError(message) from error
