"""What is sent about a run: a sentence and its numbers, and a webhook's body from a template."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import msgspec

from trainer_backend.protocol import AlertRaised, Event, RunFailed, RunFinished
from trainer_backend.watching.alert_words import alert_sentence

Occasion: TypeAlias = Literal["finished", "failed", "alert", "gate"]
"""What a person can ask to be told."""
FIELDS: Final = ("text", "occasion", "run", "name", "host", "step", "samples", "code")
"""Names that a template may use."""
DEFAULT_TEMPLATE: Final = (
    '{"text": "{name}: {text}", "occasion": "{occasion}", "run": "{run}", "host": "{host}",'
    ' "step": "{step}", "samples": "{samples}", "code": "{code}"}'
)
"""Slack, Mattermost and Discord's Slack address read "text"; the rest is for programs."""


class RunMessage(msgspec.Struct, frozen=True, kw_only=True):
    """One message about a run."""

    text: str
    occasion: Occasion
    run: str
    """The run's directory."""
    name: str
    host: str
    step: int
    samples: int
    code: str

    def values(self) -> dict[str, Any]:
        """The fields that a template may use."""
        return {name: getattr(self, name) for name in FIELDS}


def message_of(event: Event, *, run: str, name: str, host: str) -> RunMessage | None:
    """What a fact is worth telling; None for most facts."""
    match event:
        case AlertRaised():
            occasion: Occasion = "alert"
            text, code = alert_sentence(event), event.code
        case RunFinished():
            occasion = "finished"
            text, code = f"finished at step {event.step:,}", event.reason
        case RunFailed():
            occasion = "failed"
            text, code = f"failed at step {event.step:,}: {event.reason}", event.code
        case _:
            return None
    return RunMessage(
        text=text, occasion=occasion, run=run, name=name, host=host, step=event.step,
        samples=event.samples_seen, code=code,
    )  # fmt: skip


def template_fault(template: str) -> str:
    """What is wrong with a template, in a sentence; empty when nothing is."""
    try:
        json.loads(template)
    except (ValueError, RecursionError) as error:
        return f'It is not valid JSON ({error}). Write, for example, {{"text": "{{text}}"}}.'
    return ""


def body_from(template: str, values: Mapping[str, Any]) -> bytes:
    """The template with {names} in its texts filled; a text that is one name alone stays a number."""
    return json.dumps(_filled(json.loads(template), values)).encode()


def _filled(part: Any, values: Mapping[str, Any]) -> Any:  # noqa: ANN401 - JSON
    match part:
        case str():
            whole = part[1:-1]
            if part == f"{{{whole}}}" and whole in values:
                return values[whole]
            for name, value in values.items():
                part = part.replace(f"{{{name}}}", str(value))
            return part
        case dict():
            return {key: _filled(entry, values) for key, entry in part.items()}
        case list():
            return [_filled(entry, values) for entry in part]
        case _:
            return part
