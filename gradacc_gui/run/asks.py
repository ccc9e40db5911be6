"""What this window asked of a run, and what the run's facts answered. No Qt.

asked ──▶ accepted (from step k) ──▶ done
     └──▶ refused
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, TypeAlias

import msgspec

from gradacc_gui import words
from gradacc_gui.words import tr
from trainer_backend.protocol import (
    AnyCommand,
    CommandAccepted,
    CommandRefused,
    Event,
    Record,
    Warned,
)

Answer: TypeAlias = Literal["asked", "accepted", "refused", "done"]


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """One command of this window and how far it came."""

    command: AnyCommand
    answer: Answer = "asked"
    step: int | None = None
    """The step that the answer names."""
    why: str = ""
    """Why it was refused."""

    @property
    def is_open(self) -> bool:
        """Whether more is to come."""
        return self.answer in ("asked", "accepted")


class Asks:
    """The commands of this window by id, and by kind the newest one."""

    def __init__(self) -> None:
        self._asks: dict[str, Ask] = {}

    def sent(self, command: AnyCommand) -> None:
        """A command was put into the inbox."""
        self._asks[command.id] = Ask(command=command)

    def apply(self, records: Iterable[Record]) -> bool:
        """Take the facts in; tells whether any was an answer to this window."""
        answered = False
        for record in records:
            answered |= self._apply(record.event)
        return answered

    def _apply(self, event: Event) -> bool:
        values = event.values if isinstance(event, Warned) else {}
        command_id = getattr(event, "command_id", None) or values.get("command_id")
        ask = self._asks.get(command_id) if isinstance(command_id, str) else None
        if ask is None:
            return False
        match event:
            case CommandAccepted() if ask.answer == "asked":
                ask = msgspec.structs.replace(ask, answer="accepted", step=event.applies_at_step)
            case Warned():  # a checkpoint that was accepted and could not be saved
                ask = msgspec.structs.replace(ask, answer="refused", why=words.warning(event))
            case CommandRefused():
                ask = msgspec.structs.replace(ask, answer="refused", why=words.refusal(event))
            case CommandAccepted():
                return False  # its effect was told before, or it was answered twice
            case _:  # any other fact that names a command is its effect
                step = getattr(event, "to_step", None) or getattr(event, "step", None)
                ask = msgspec.structs.replace(ask, answer="done", step=step)
        self._asks[ask.command.id] = ask
        return True

    def newest(self, *kinds: type) -> Ask | None:
        """The last command of these kinds that this window sent."""
        for ask in reversed(self._asks.values()):
            if isinstance(ask.command, kinds):
                return ask
        return None

    def abandon(self) -> None:
        """The trainer is gone: what is open will not be answered."""
        why = tr("the trainer ended before it took effect")
        self._asks = {
            key: msgspec.structs.replace(ask, answer="refused", why=why) if ask.is_open else ask
            for key, ask in self._asks.items()
        }


def told(ask: Ask, *, effective: int | None = None) -> str:
    """The line under the button that asked: asked, from step k, changed, or refused and why."""
    request = words.request(ask.command)
    batch = "" if effective is None else tr(" · effective batch {count:,}").format(count=effective)
    match ask.answer:
        case "asked":
            return tr("{asked}; waiting for the trainer").format(asked=words.requested(ask.command))
        case "accepted":
            return (
                tr("{request} from step {step:,}").format(request=_upper(request), step=ask.step or 0) + batch
            )
        case "done":
            return (
                tr("{request} since step {step:,}").format(request=_upper(request), step=ask.step or 0)
                + batch
            )
        case "refused":
            return tr("{request} was refused: {why}").format(request=_upper(request), why=ask.why)


def _upper(text: str) -> str:
    return text[:1].upper() + text[1:]
