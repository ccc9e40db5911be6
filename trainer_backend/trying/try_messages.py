"""What a person asks of a trained model and what it answers, as plain data: JSON by the line. No torch."""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

import msgspec

Who: TypeAlias = Literal["run", "base"]
"""The run's newest checkpoint, or the model that it started from."""
ExportKind: TypeAlias = Literal["adapter", "merged", "model"]


class TryMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=True):
    """One line of `try --stream`, either way; its class is the line's "type"."""


# --------------------------------------------------------------------------------- what is asked


class Prompt(TryMessage, frozen=True, kw_only=True):
    """Continue a text, or answer it as the user's message of a chat."""

    text: str
    as_chat: bool = False
    thinks: bool = False
    """Beside `as_chat`, where the template can turn reasoning on and off."""
    most_tokens: int = 200
    temperature: float = 0.0
    """0 takes the likeliest token each time."""
    with_base: bool = True


class Look(TryMessage, frozen=True, kw_only=True):
    """Say what a picture shows."""

    path: str


class HandOver(TryMessage, frozen=True, kw_only=True):
    """Write the weights for other programs."""

    what: ExportKind
    folder: str
    """A new folder, or an empty one."""


AnyQuestion: TypeAlias = Prompt | Look | HandOver


# ------------------------------------------------------------------------------ what is answered


class TryProgress(TryMessage, frozen=True, kw_only=True):
    """A part is about to be done."""

    code: str
    """importing-torch | opening-run | opening-base | writing | looking | exporting"""


class Opened(TryMessage, frozen=True, kw_only=True):
    """A checkpoint can be asked."""

    step: int
    takes: Literal["prompt", "picture", "nothing"]
    has_template: bool = False
    """Whether prompts can be posed as messages of a chat."""
    has_thinking: bool = False
    """Whether the template can turn reasoning on and off."""
    has_base: bool = False
    device: str
    is_average: bool = False
    """Whether the weights are the averaged ones, which evaluations measure."""
    exports: tuple[ExportKind, ...] = ()


class AnswerPart(TryMessage, frozen=True, kw_only=True):
    """More of an answer."""

    who: Who
    text: str


class Written(TryMessage, frozen=True, kw_only=True):
    """A whole answer."""

    who: Who
    text: str
    tokens: int
    duration_s: float
    ended: bool
    """False: cut at the number of tokens that was allowed."""


class PictureClasses(TryMessage, frozen=True, kw_only=True):
    """What a picture shows: shares of its classes, the largest first."""

    shares: tuple[tuple[str, float], ...]
    picture: str = ""
    """A file with the picture and its classes by pixel, side by side; empty for a class of the whole."""


class HandedOver(TryMessage, frozen=True, kw_only=True):
    """Files were written."""

    what: ExportKind
    folder: str
    size_bytes: int
    commands: tuple[str, ...] = ()
    """What makes a GGUF file of them, line by line."""


class TryRefused(TryMessage, frozen=True, kw_only=True):
    """Why there is no answer: a sentence."""

    message: str
    who: Who | None = None
    """Whose answer is missing; None: all of it."""


class Answered(TryMessage, frozen=True, kw_only=True):
    """All that was asked is answered; the next question may come."""


AnyTryMessage: TypeAlias = (
    TryProgress | Opened | AnswerPart | Written | PictureClasses | HandedOver | TryRefused | Answered
)
_decoder: Final = msgspec.json.Decoder(AnyTryMessage)
_question_decoder: Final = msgspec.json.Decoder(AnyQuestion)


def encode_try(message: TryMessage) -> bytes:
    """One line, without its end."""
    return msgspec.json.encode(message)


def decode_try(line: bytes) -> AnyTryMessage:
    """A line that the trainer wrote. Raises msgspec.MsgspecError."""
    return _decoder.decode(line)


def decode_question(line: bytes) -> AnyQuestion:
    """A line that the window wrote. Raises msgspec.MsgspecError."""
    return _question_decoder.decode(line)
