"""What a check of a recipe finds, as plain data: JSON by the line, or one object at the end. No torch."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

from trainer_backend.protocol import Scalar, plain

State: TypeAlias = Literal["ok", "doubtful", "stop", "waits"]
"""`stop`: a run would fail or learn the wrong thing. `waits`: it could not be tried."""
FORMAT: Final = 1


class CheckMessage(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=True):
    """One line of `preview --stream`; its class is the line's "type"."""


class CheckProgress(CheckMessage, frozen=True, kw_only=True):
    """A part is about to be done."""

    code: str
    """importing-torch | reading-some | reading-data | checking-data | building-model | trying-model"""
    done: int = 0
    of: int = 0


class CheckFailed(CheckMessage, frozen=True, kw_only=True):
    """Nothing could be checked: the recipe is refused, or the user's code raised."""

    message: str


class Amendment(msgspec.Struct, frozen=True, kw_only=True):
    """A value of the recipe that would mend what was found."""

    key: str
    value: Any


class Finding(CheckMessage, frozen=True, kw_only=True):
    """One check's outcome; `check_words` makes title and sentence of it."""

    code: str
    state: State
    values: dict[str, Scalar] = {}
    duration_s: float = 0.0
    """What the check took."""
    change: Amendment | None = None
    """The one action that is offered."""
    may_be_accepted: bool = False
    """A stop that a person may overrule: it may be meant."""


# ------------------------------------------------------------------------------------ the window


class TokenRow(msgspec.Struct, frozen=True, kw_only=True, tag_field="row", tag="tokens"):
    """One row of tokens as the model will see it."""

    source: str
    """`file:line` of its sample; of a packed row, of each."""
    texts: tuple[str, ...]
    """Each token as text."""
    weights: tuple[float, ...]
    """What the loss of predicting each token weighs; 0 for the first of a sample."""
    ids: tuple[int, ...] = ()
    special: tuple[int, ...] = ()
    """Places of special tokens."""
    outside: tuple[int, ...] = ()
    """Places of ids beyond the model's embedding."""


class PictureRow(msgspec.Struct, frozen=True, kw_only=True, tag_field="row", tag="picture"):
    """One picture as the model will see it, before it is normalized and padded."""

    source: str
    shape: tuple[int, ...]
    """Channels, height, width."""
    mean: tuple[float, ...]
    """Of each channel, from 0 to 1 on the data set's own scale."""
    highest: tuple[float, ...] = ()
    """Likewise."""
    mask_shares: dict[str, float] = {}
    """Each mask value's share of the pixels; "ignored" has no loss."""
    label: str = ""
    """Its class."""
    picture: str = ""
    """A PNG to look at."""
    mask: str = ""
    """A grey PNG of the mask's values; 255 is ignored."""


class TensorFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of a micro-batch."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    low: float | None = None
    high: float | None = None


class TensorRow(msgspec.Struct, frozen=True, kw_only=True, tag_field="row", tag="tensors"):
    """What can be told of a micro-batch of the user's own code."""

    source: str
    tensors: tuple[TensorFacts, ...]


AnyRow: TypeAlias = TokenRow | PictureRow | TensorRow


class MicroBatchSeen(msgspec.Struct, frozen=True, kw_only=True):
    """One micro-batch of the first optimizer step."""

    rows: tuple[AnyRow, ...]
    samples: int
    weights: dict[str, float] = {}
    """Its share of each loss term's denominator."""
    padding_ratio: float | None = None


class FirstWindow(CheckMessage, frozen=True, kw_only=True):
    """The first optimizer step, as the model will see it."""

    whole: bool
    """False: the first records alone were read, for a quick look."""
    looked_at: int = 0
    """Records that the quick look read at most."""
    micro_batches: tuple[MicroBatchSeen, ...] = ()
    """Those that were looked at; large steps are cut."""
    micro_batch_size: int = 1
    steps: int = 1
    """Micro-batches that the step has."""
    samples: int | None = None
    """Rows of an epoch; None: the data has no length."""
    records: int | None = None
    """What they were made of: conversations, texts, pictures."""
    weight: float | None = None
    """Sum of the loss weights of an epoch."""
    unit: str = "samples"
    """What the loss weighs: tokens, samples, pixels, images."""
    denominators: dict[str, float] = {}
    """D of the step for each loss term, the main one first; empty: not known before the loss is taken."""
    padding_ratio: float | None = None
    longest: int | None = None
    """Tokens of the longest sample."""
    longest_allowed: int | None = None
    height_width: tuple[int, int] | None = None
    """Of a picture, where all that were looked at have the same."""

    @property
    def rows(self) -> tuple[AnyRow, ...]:
        """All rows in order."""
        return tuple(row for batch in self.micro_batches for row in batch.rows)

    @property
    def denominator(self) -> float | None:
        """D of the main term."""
        return next(iter(self.denominators.values()), None)


class ValueShare(msgspec.Struct, frozen=True, kw_only=True):
    """One value of the masks, or one class."""

    value: int
    share: float
    """Of all pixels, or of all samples."""
    files: int
    meaning: Literal["class", "ignored", "undecided"] = "class"
    name: str = ""


class ClassShares(CheckMessage, frozen=True, kw_only=True):
    """How often each mask value or class occurs, over everything that was read."""

    what: Literal["pixels", "samples"]
    files: int
    classes: int
    entries: tuple[ValueShare, ...]
    forms_borders: bool = False
    """The undecided value lies in thin lines between classes."""
    duration_s: float = 0.0


class PictureValues(CheckMessage, frozen=True, kw_only=True):
    """The numbers in pictures of more than 8 bits."""

    pictures: int
    """That were measured."""
    kind: str
    """uint16, float32 …"""
    low: float
    high: float
    counts: tuple[int, ...]
    """Of equal steps from low to high."""
    proposed: tuple[float, float]
    stated: tuple[float, float] | None = None
    """The recipe's data.value_range."""
    duration_s: float = 0.0


class DataDecisions(CheckMessage, frozen=True, kw_only=True):
    """What was decided by itself while the data was read, and should be known."""

    sentences: tuple[str, ...]


class CheckReport(CheckMessage, frozen=True, kw_only=True):
    """All of it; kept with the run."""

    format: int = FORMAT
    made_at: float = 0.0
    """Seconds since 1970."""
    duration_s: float = 0.0
    recipe: str = ""
    kind: str = ""
    refused: str | None = None
    """The sentence of the first stop."""
    said: tuple[str, ...] = ()
    window: FirstWindow | None = None
    shares: ClassShares | None = None
    values: PictureValues | None = None
    findings: tuple[Finding, ...] = ()

    @property
    def stops(self) -> tuple[Finding, ...]:
        """What must be mended before a start."""
        return tuple(finding for finding in self.findings if finding.state == "stop")

    @property
    def doubts(self) -> tuple[Finding, ...]:
        """What does not prevent the start."""
        return tuple(finding for finding in self.findings if finding.state == "doubtful")


AnyCheckMessage: TypeAlias = (
    CheckProgress
    | CheckFailed
    | Finding
    | FirstWindow
    | ClassShares
    | PictureValues
    | DataDecisions
    | CheckReport
)
_decoder = msgspec.json.Decoder(AnyCheckMessage)


def encode_check(message: AnyCheckMessage) -> bytes:
    """One line of JSON."""
    return msgspec.json.encode(message)


def decode_check(line: bytes | str) -> AnyCheckMessage:
    """Undo `encode_check`. Raises msgspec.DecodeError."""
    return _decoder.decode(line)


def as_object(report: CheckReport, words: list[dict[str, Any]]) -> dict[str, Any]:
    """What `gradacc check --json` prints; `words` has title and sentence of each finding."""
    window = report.window
    told: dict[str, Any] = {
        "refused": report.refused,
        "said": list(report.said),
        "samples": None if window is None else window.samples,
        "weight": None if window is None else window.weight,
        "window": [] if window is None else [_told(row) for row in window.rows],
        "denominators": {} if window is None else window.denominators,
        "padding": None if window is None else window.padding_ratio,
        "longest": None if window is None else window.longest,
        "classes": [] if report.shares is None else msgspec.to_builtins(report.shares.entries),
        "checks": words,
    }
    whole: dict[str, Any] = plain(told)
    return whole


def _told(row: AnyRow) -> dict[str, Any]:
    match row:
        case TokenRow():
            return {
                "source": row.source,
                "texts": list(row.texts),
                "weights": list(row.weights),
                "ids": list(row.ids),
            }
        case PictureRow():
            told: dict[str, Any] = {
                "source": row.source,
                "shape": list(row.shape),
                "mean": list(row.mean),
                "max": list(row.highest),
                "mask_shares": row.mask_shares,
            }
            return told | ({"label": row.label} if row.label else {})
        case TensorRow():
            return {"source": row.source, "tensors": msgspec.to_builtins(row.tensors)}
