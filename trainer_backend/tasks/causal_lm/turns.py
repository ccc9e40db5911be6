"""Conversations of any spelling, brought to one: turns with a role, text, reasoning and tool calls."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, TypeAlias

Role: TypeAlias = Literal["system", "user", "assistant", "tool"]
ROLES: Final[dict[str, Role]] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "function_call": "assistant",
    "tool_call": "assistant",
    "tool": "tool",
    "observation": "tool",
    "function": "tool",
    "function_response": "tool",
    "ipython": "tool",
}
"""How people call the four."""
CALLS: Final = {"function_call", "tool_call"}
ROLE_KEYS: Final = ("role", "from", "speaker")
CONTENT_KEYS: Final = ("content", "value", "text")
REASONING_KEYS: Final = ("reasoning_content", "reasoning", "thinking")
TEXT_PARTS: Final = {"text", "input_text", "output_text"}
REASONING_PARTS: Final = {"reasoning", "thinking"}
MEDIA: Final = ("images", "image", "videos", "video", "audios", "audio")
"""Fields beside a conversation that a text model cannot take."""


class Unfit(Exception):  # noqa: N818 - a reason, caught where the place is known
    """Why a record cannot be taken, without its place."""


@dataclasses.dataclass(frozen=True)
class Call:
    """A tool call of an assistant."""

    name: str
    arguments: Any
    """A table where the text was JSON, else the text."""
    id: str = ""


@dataclasses.dataclass(frozen=True)
class Turn:
    """A message of a conversation: its role, its text and its tool calls."""

    role: Role
    text: str
    reasoning: str = ""
    calls: tuple[Call, ...] = ()
    name: str = ""
    call_id: str = ""
    learnt: bool = True
    """For an assistant's: whether its answer is to be learnt."""
    inline: str = ""
    """The text as it stood, where its reasoning was in it between <think> and </think>."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing in it to learn."""
        return not self.text.strip() and not self.calls


@dataclasses.dataclass(frozen=True)
class Dialogue:
    """A conversation, its tools, and where it came from."""

    place: str
    turns: tuple[Turn, ...]
    tools: tuple[dict[str, Any], ...] = ()
    continuation: bool = False
    """A prompt and what goes on behind it as plain text, where there is no chat template."""


def parsed(value: Any) -> Any:  # noqa: ANN401 - JSON
    """JSON that stands in a text, as a column of CSV must hold it; anything else as it is."""
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            return json.loads(value)
        except (ValueError, RecursionError):
            return value
    return value


def turns_of(messages: Any, *, role_key: str = "", content_key: str = "") -> tuple[Turn, ...]:  # noqa: ANN401
    """The turns of a list of messages. Raises Unfit."""
    messages = parsed(messages)
    if isinstance(messages, Mapping):
        messages = [messages]
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise Unfit("a conversation must be a list of messages, each a table with a role and its content")
    turns: list[Turn] = []
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping):
            raise Unfit(f"message {number} is not a table with a role and its content")
        turns.append(_turn(message, number, role_key, content_key))
    return tuple(turns)


def _turn(message: Mapping[str, Any], number: int, role_key: str, content_key: str) -> Turn:
    given = {key: value for key, value in message.items() if value is not None}
    written = next((given[key] for key in (role_key, *ROLE_KEYS) if key and key in given), None)
    if not isinstance(written, str):
        known = role_key or ", ".join(ROLE_KEYS)
        raise Unfit(
            f"message {number} has no role (its keys: {', '.join(message) or 'none'}; looked for {known})"
        )
    role = ROLES.get(written.strip().lower())
    if role is None:
        raise Unfit(f"message {number} has the unknown role {written!r}; known are {', '.join(ROLES)}")
    key = next((key for key in (content_key, *CONTENT_KEYS) if key and key in given), "")
    text, parts_reasoning = _content(given.get(key), number)
    calls = _calls(given, number)
    if written.strip().lower() in CALLS:
        calls, text = (*calls, *_call_list(parsed(text), number)), ""
    if not key and not calls and "content" not in message and role != "assistant":
        raise Unfit(f"message {number} has no content (its keys: {', '.join(message)})")
    reasoning = parts_reasoning or next(
        (given[key] for key in REASONING_KEYS if isinstance(given.get(key), str)), ""
    )
    inline = ""
    if role == "assistant" and not reasoning and "</think>" in text:
        inline = text
        before, _, text = text.partition("</think>")
        reasoning, text = (before.partition("<think>")[2] or before).strip("\n"), text.lstrip("\n")
    return Turn(
        role,
        text,
        reasoning=reasoning,
        calls=calls,
        name=str(given.get("name", "")),
        call_id=str(given.get("tool_call_id", "")),
        learnt=_is_learnt(given, number),
        inline=inline,
    )


def _is_learnt(message: Mapping[str, Any], number: int) -> bool:
    for key in ("weight", "loss_weight", "train"):
        value = message.get(key, 1)
        if value not in (0, 1):  # True and False are 1 and 0
            raise Unfit(f"message {number} has {key} = {value!r}; it may be 0 (not learnt) or 1")
        if not value:
            return False
    return True


def _content(content: Any, number: int) -> tuple[str, str]:  # noqa: ANN401 - JSON
    """Text and reasoning of a content that is text, a list of parts, or nothing."""
    if content is None or isinstance(content, str):
        return content or "", ""
    if isinstance(content, Mapping):
        content = [content]
    if not isinstance(content, Sequence):
        raise Unfit(f"message {number} has content that is neither text nor a list of parts")
    texts: list[str] = []
    reasoning: list[str] = []
    for part in content:
        kind = part.get("type", "text") if isinstance(part, Mapping) else "text"
        text = part if isinstance(part, str) else _part_text(part)
        if kind in TEXT_PARTS and isinstance(text, str):
            texts.append(text)
        elif kind in REASONING_PARTS and isinstance(text, str):
            reasoning.append(text)
        else:
            raise Unfit(f"message {number} holds a part of type {kind!r}; this kind of task takes text alone")
    return "".join(texts), "".join(reasoning)


def _part_text(part: Any) -> Any:  # noqa: ANN401 - JSON
    if not isinstance(part, Mapping):
        return None
    return next(
        (part[key] for key in ("text", "content", *REASONING_KEYS) if part.get(key) is not None), None
    )


def _calls(message: Mapping[str, Any], number: int) -> tuple[Call, ...]:
    found = parsed(message.get("tool_calls")) or []
    if "function_call" in message:
        found = [message["function_call"], *found]
    return _call_list(found, number)


def _call_list(found: Any, number: int) -> tuple[Call, ...]:  # noqa: ANN401 - JSON
    calls = []
    for call in found if isinstance(found, Sequence) and not isinstance(found, str) else [found]:
        inner = call.get("function", call) if isinstance(call, Mapping) else None
        if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
            raise Unfit(f"message {number} has a tool call without the name of its function")
        arguments = inner.get("arguments", inner.get("parameters"))
        calls.append(
            Call(inner["name"], {} if arguments is None else parsed(arguments), str(call.get("id") or ""))
        )
    return tuple(calls)


def tools_of(value: Any) -> tuple[dict[str, Any], ...]:  # noqa: ANN401 - JSON
    """The tools of a record, in the form that templates expect. Raises Unfit."""
    found = parsed(value)
    if found in (None, "", [], {}):
        return ()
    tools = []
    for entry in found if isinstance(found, list) else [found]:
        tool = parsed(entry)
        if not isinstance(tool, Mapping):
            raise Unfit("tools must be a list of tables, each with a name and its parameters")
        inner = tool.get("function", tool)
        if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
            raise Unfit("a tool has no name")
        tools.append({"type": "function", "function": dict(inner)})
    return tuple(tools)


def refuse_media(fields: Mapping[str, Any]) -> None:
    """Raise Unfit where pictures, sound or video stand beside the text."""
    for key in MEDIA:
        if fields.get(key):
            raise Unfit(f"{key} is not empty; this kind of task takes text alone")
