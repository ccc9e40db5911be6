"""What a certificate says, as plain data: saved as JSON, shown as a page. No torch.

Letters: G is the large batch's gradient in fp64, g what an engine handed to the optimizer.
"""

from __future__ import annotations

import math
from typing import Final, Literal, TypeAlias

import msgspec

from trainer_backend.protocol import Scalar
from trainer_backend.published import Difference as Published

Verdict: TypeAlias = Literal["equal", "per-micro-batch", "not-equal"]
ComputePrecision: TypeAlias = Literal["fp64", "fp32", "bf16", "fp16"]
Fold: TypeAlias = Literal["one", "equal", "ragged", "first", "tail", "clip", "out-of-memory"]

LIMITS: Final[dict[str, float]] = {"fp64": 1e-12, "fp32": 1e-5, "bf16": 2e-2, "fp16": 2e-2}
"""Relative L2 error that a precision is allowed at least."""
FORMAT: Final = 1


class Message(msgspec.Struct, frozen=True, kw_only=True, tag_field="type", tag=True):
    """One line of `verify --json`; its class is the line's "type"."""


class VerifyProgress(Message, frozen=True, kw_only=True):
    """A part is about to be done."""

    code: str
    """importing-torch | reading-data | building-model | choosing-size | reference | comparing | diagnosing"""
    done: int = 0
    of: int = 0
    values: dict[str, Scalar] = {}


class VerifyFailed(Message, frozen=True, kw_only=True):
    """The certificate could not be made."""

    message: str


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One parameter tensor of a comparison."""

    name: str
    error: float
    """|g - G| over max(|G|, 1e-6 of the whole gradient's norm), of this tensor."""
    alpha: float | None
    """<g, G> / |G|^2 of this tensor; None where G is zero."""
    cosine: float | None
    holds: bool


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """One window through the engine, held against the reference."""

    steps: int
    """N."""
    fold: Fold
    """How the samples were cut: one batch, equal parts, ragged parts, an epoch's tail, and so on."""
    sizes: tuple[int, ...]
    """Samples in each micro-batch."""
    precision: ComputePrecision
    error: float
    """|g - G| / |G| against the one large batch."""
    definition_error: float
    """The same against the task's own sums over these micro-batches: what the engine answers for."""
    limit: float
    """max(limit of the precision, 1.5 x error of the one-fold, 4 x floor)."""
    holds: bool
    """Whether the engine keeps to the definition, numbers beside the gradient included."""
    equals_large_batch: bool
    alpha: float | None
    cosine: float | None
    loss: float | None
    denominator: float | None
    gradient_norm: float | None
    faults: tuple[str, ...] = ()
    """Which of loss, denominator, gradient-norm, samples, updates is wrong."""
    worst_layers: tuple[Layer, ...] = ()
    duration_s: float = 0.0


class Floor(msgspec.Struct, frozen=True, kw_only=True):
    """What the large batch alone differs by, without any engine; no comparison may ask for less."""

    precision: ComputePrecision
    one_fold_error: float
    """Of the one large batch against fp64."""
    repeat: float
    """The same large batch twice."""
    order: float
    """The same large batch in reversed order."""


class Term(msgspec.Struct, frozen=True, kw_only=True):
    """One term of the loss."""

    name: str
    loss: float | None
    """total / weight over all samples, fp64."""
    denominator: float
    additive: bool
    """Whether the gradients of micro-batches add up to the large batch's."""
    stated: bool
    """Whether the task says that the term belongs to the micro-batch as a whole."""


class Culprit(msgspec.Struct, frozen=True, kw_only=True):
    """What breaks equality, where, and how it can be mended; `words` makes sentences of it."""

    code: str
    stated: bool = False
    """A definition that the task states: no fault."""
    where: tuple[str, ...] = ()
    """Layers or loss terms."""
    values: dict[str, Scalar] = {}


class Remark(msgspec.Struct, frozen=True, kw_only=True):
    """Something to know about how the certificate was made."""

    code: str
    values: dict[str, Scalar] = {}


class VerifyReport(Message, frozen=True, kw_only=True):
    """An equivalence certificate: figures, verdict, culprits and how it was made."""

    format: int = FORMAT
    verdict: Verdict
    expected: Verdict = "equal"
    recipe: str = ""
    kind: str = ""
    made_at: float = 0.0
    """Seconds since 1970."""
    duration_s: float = 0.0
    version: str = ""
    torch_version: str = ""
    device: str = ""
    precision: ComputePrecision = "fp32"
    """The run's own."""
    reference: ComputePrecision = "fp64"
    """What was held to be true; fp32 where fp64 cannot run (see the remarks)."""
    parameters: int = 0
    samples: int = 0
    """In the large batch."""
    samples_partition: int = 0
    """In the partitions that were compared with each other only, where the large batch did not fit."""
    gradient_norm: float = 0.0
    """|G|."""
    loss: float | None = None
    denominator: float | None = None
    terms: tuple[Term, ...] = ()
    floors: tuple[Floor, ...] = ()
    comparisons: tuple[Comparison, ...] = ()
    culprits: tuple[Culprit, ...] = ()
    remarks: tuple[Remark, ...] = ()
    published_source: str = ""
    published: tuple[Published, ...] = ()
    """What the recipe says was published beside what it asks for."""

    @property
    def as_declared(self) -> bool:
        """Whether the verdict is the one that the recipe declares."""
        return self.verdict == self.expected


AnyMessage: TypeAlias = VerifyProgress | VerifyFailed | VerifyReport

_encoder = msgspec.json.Encoder()
_SIGNS: Final = {"NaN": float("nan"), "Infinity": float("inf"), "-Infinity": float("-inf")}


def encode(message: AnyMessage) -> bytes:
    """One line of JSON. Numbers that are not finite are the strings "NaN", "Infinity", "-Infinity"."""
    plain = msgspec.to_builtins(message)
    return _encoder.encode(_written(plain))


def decode(line: bytes | str) -> AnyMessage:
    """Undo `encode`. Raises msgspec.DecodeError."""
    message: AnyMessage = msgspec.convert(_read(msgspec.json.decode(line)), AnyMessage)
    return message


def _written(value: object) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, dict):
        return {key: _written(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_written(entry) for entry in value]
    return value


def _read(value: object) -> object:
    if isinstance(value, str):
        return _SIGNS.get(value, value)
    if isinstance(value, dict):
        return {key: _read(entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [_read(entry) for entry in value]
    return value
