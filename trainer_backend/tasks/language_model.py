"""A byte-level GPT, trained from scratch on text; by default on Python's own standard library.

Shapes: B samples, T context length, C width, H heads, V = 256 byte values.
"""

from __future__ import annotations

import bisect
import codecs
import hashlib
import itertools
import operator
import os
import sysconfig
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Final

import torch
from torch import nn
from torch.nn import functional

from trainer_backend.engine import checkpoint_modules
from trainer_backend.errors import UsageError
from trainer_backend.kinds import LanguageModelData, LanguageModelTask
from trainer_backend.run_directory import is_readable
from trainer_backend.tasks import Datasets, LossTerm
from trainer_backend.tasks.built_in import BuiltIn
from trainer_backend.tasks.continuations import Continuation, OnText

VALUES: Final = 256
SEPARATOR: Final = b"\x00"
"""Between files: a byte that text does not have."""
NEWLINE: Final = ord("\n")
LEFT_OUT: Final = frozenset({"site-packages", "dist-packages", "test", "tests", "idle_test", "__pycache__"})
"""Folders of the standard library that are not read."""
LARGEST_FILE_BYTES: Final = 1 << 30


class LanguageModel(BuiltIn[LanguageModelTask, LanguageModelData]):
    """Trains a small transformer to predict the next byte."""

    decays_all = False

    def __post_init__(self) -> None:
        self.loss_unit = self.normalization.removesuffix("s")

    def model(self) -> GPT:
        """The model, fp32, on the CPU."""
        model = GPT(self.task)
        if self.task.activation_checkpointing:
            checkpoint_modules(model, [f"blocks.{index}" for index in range(self.task.layers)])
        return model

    def datasets(self) -> Datasets:
        """Text in samples of one context, split by file. Raises UsageError."""
        data, length = self.data, self.task.context_length
        root = self.path(data.path) if data.path else None
        train, validation = split_texts(root, data)
        if len(train) <= length:
            where = f"data.path = {data.path}" if data.path else "The standard library"
            message = (
                f"{where}: {len(train):,} bytes to train on are fewer than one sample of {length + 1} bytes."
                " Give more text, or a smaller task.context_length."
            )
            raise UsageError(message)
        held_out = Contexts(validation, length) if len(validation) > length else None
        return Datasets(train=Contexts(train, length), validation=held_out)

    def collate(self, samples: list[torch.Tensor]) -> torch.Tensor:
        """Bytes to predict and bytes to predict from: uint8 (B, T + 1)."""
        return torch.stack(samples)

    def loss(self, model: nn.Module, batch: torch.Tensor) -> LossTerm:
        """Cross-entropy summed over the tokens, in fp32; each sample's mean where samples weigh alike."""
        text_bt = batch.long()
        logits_btv = model(text_bt[:, :-1])
        total = functional.cross_entropy(
            logits_btv.float().view(-1, VALUES), text_bt[:, 1:].reshape(-1), reduction="sum"
        )
        samples, tokens = self.count(batch)
        if self.normalization == "samples":  # every sample has as many tokens, so its mean is this share
            return LossTerm(total * (samples / tokens), samples)
        return LossTerm(total, tokens)

    @torch.no_grad()
    def write(
        self,
        model: nn.Module,
        prompt: str,
        *,
        as_chat: bool,
        thinks: bool = False,
        most_tokens: int,
        temperature: float = 0.0,
        on_text: OnText,
    ) -> Continuation:
        """Bytes after a prompt, by the last context of them. Raises UsageError for an empty prompt."""
        del as_chat, thinks  # it knows bytes only
        written = bytearray(prompt.encode())
        if not written:
            message = "The prompt is empty. Give at least one character to go on from."
            raise UsageError(message)
        start = len(written)
        words = codecs.getincrementaldecoder("utf-8")("replace")
        device = next(model.parameters()).device
        for _ in range(most_tokens):
            context_1t = torch.tensor([list(written[-self.task.context_length :])], device=device)
            logits_v = model(context_1t)[0, -1].float()
            chosen = (
                (logits_v / temperature).softmax(0).multinomial(1)[0] if temperature else logits_v.argmax()
            )
            written.append(int(chosen))
            if text := words.decode(bytes([int(chosen)])):
                on_text(text)
        return Continuation(written[start:].decode("utf-8", "replace"), len(written) - start, ended=False)

    def weights(self, batch: torch.Tensor) -> dict[str, float]:
        """The loss's denominator, before the forward."""
        samples, tokens = self.count(batch)
        return {"loss": float(samples if self.normalization == "samples" else tokens)}

    def count(self, batch: torch.Tensor) -> tuple[int, int]:
        """Samples and tokens."""
        return batch.shape[0], batch.shape[0] * (batch.shape[1] - 1)


class Contexts(torch.utils.data.Dataset[torch.Tensor]):
    """Text cut in samples: sample i predicts bytes i*T + 1 … (i + 1)*T from those before each."""

    uses_randomness = False

    def __init__(self, text: bytearray, length: int) -> None:
        self._files = text.files if isinstance(text, NamedText) else ()
        self._text = torch.frombuffer(text, dtype=torch.uint8)
        self._length = length

    def __len__(self) -> int:
        """Whole samples in the text."""
        return (len(self._text) - 1) // self._length

    def __getitem__(self, index: int) -> torch.Tensor:
        """uint8 (T + 1,)."""
        start = index * self._length
        return self._text[start : start + self._length + 1]

    def source(self, index: int) -> str:
        """`file:line` where a sample begins; empty for text that came from no file."""
        start = index * self._length
        place = bisect.bisect_right(self._files, start, key=operator.itemgetter(0)) - 1
        if place < 0:
            return ""
        begin, name = self._files[place]
        newlines = int((self._text[begin:start] == NEWLINE).sum())
        return f"{name}:{newlines + 1}"


# ------------------------------------------------------------------------------------- the text


class NamedText(bytearray):
    """Text of several files, end to end."""

    files: tuple[tuple[int, str], ...] = ()
    """Where each begins, in bytes, and its name."""

    @classmethod
    def joined(cls, texts: Iterable[tuple[str, bytes]]) -> NamedText:
        """Files with `SEPARATOR` between them."""
        texts = list(texts)
        made = cls(SEPARATOR.join(text for _, text in texts))
        begins = itertools.accumulate((len(text) + len(SEPARATOR) for _, text in texts), initial=0)
        made.files = tuple((begin, name) for begin, (name, _) in zip(begins, texts, strict=False))
        return made


def split_texts(root: Path | None, data: LanguageModelData) -> tuple[NamedText, NamedText]:
    """Training and validation text, split by file; one file alone is split near its end."""
    files = sorted(_files(root, data))
    if not files:
        message = (
            f"data.path = {data.path}: no file there matches data.pattern = {data.pattern}."
            " Give a folder with text in it, or another pattern."
        )
        raise UsageError(message)
    texts = [(name, _read(path)) for name, path in files]
    if len(texts) == 1:
        name, text = texts[0]
        edge = len(text) - int(len(text) * data.validation_fraction)
        return NamedText.joined([(name, text[:edge])]), NamedText(text[edge:])
    return _by_file(texts, data.validation_fraction)


def _by_file(texts: list[tuple[str, bytes]], fraction: float) -> tuple[NamedText, NamedText]:
    """Files whose names hash lowest are held out until they make the fraction; the same ones each time."""
    wanted = fraction * sum(len(text) for _, text in texts)
    ranked = sorted(texts, key=lambda entry: hashlib.sha256(entry[0].encode()).digest())
    held_out: set[str] = set()
    size = 0
    for name, text in ranked[:-1]:  # at least one file is trained on
        if size >= wanted:
            break
        held_out.add(name)
        size += len(text)
    return (
        NamedText.joined((name, text) for name, text in texts if name not in held_out),
        NamedText.joined((name, text) for name, text in texts if name in held_out),
    )


def _files(root: Path | None, data: LanguageModelData) -> Iterator[tuple[str, Path]]:
    """Name (relative to the root) and path of every file to read. Raises UsageError."""
    if root is None:
        library = Path(sysconfig.get_path("stdlib"))
        yield from _walk(library, ["*.py"], LEFT_OUT)
    elif root.exists() and not is_readable(root):
        message = f"data.path = {data.path}: {root} cannot be read by this user. Check its permissions."
        raise UsageError(message)
    elif root.is_dir():
        yield from _walk(root, [word.strip() for word in data.pattern.split(",") if word.strip()])
    elif root.is_file():
        yield root.name, root
    else:
        message = f"data.path = {data.path}: there is no such file or folder ({root}). Check the path."
        raise UsageError(message)


def _walk(
    root: Path, patterns: Iterable[str], left_out: frozenset[str] = frozenset()
) -> Iterator[tuple[str, Path]]:
    patterns = list(patterns)
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(name for name in folders if name not in left_out and not name.startswith("."))
        for name in names:
            if any(fnmatch(name, pattern) for pattern in patterns):
                path = Path(folder, name)
                yield path.relative_to(root).as_posix(), path


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > LARGEST_FILE_BYTES:
            message = f"{path} is larger than 1 GiB, which is too much for this kind of task. Split it."
            raise UsageError(message)
        return path.read_bytes()
    except OSError as error:
        message = (
            f"{path} cannot be read: {error.strerror}. Check its permissions, or exclude it by data.pattern."
        )
        raise UsageError(message) from error


# ------------------------------------------------------------------------------------ the model


class GPT(nn.Module):
    """Pre-norm transformer decoder over bytes (Radford et al. 2019), head tied to the embedding."""

    def __init__(self, sizes: LanguageModelTask) -> None:
        super().__init__()
        self.bytes = nn.Embedding(VALUES, sizes.width)
        self.places = nn.Embedding(sizes.context_length, sizes.width)
        self.dropout = nn.Dropout(sizes.dropout)
        self.blocks = nn.ModuleList(Block(sizes) for _ in range(sizes.layers))
        self.norm = nn.LayerNorm(sizes.width)
        for name, parameter in self.named_parameters():
            if parameter.dim() >= 2:
                # Each block adds two branches to the residual stream; its variance shall not grow with depth.
                last = name.endswith("out.weight")
                nn.init.normal_(parameter, std=0.02 / (2 * sizes.layers) ** 0.5 if last else 0.02)

    def forward(self, text_bt: torch.Tensor) -> torch.Tensor:
        """Logits (B, T, V) of the byte after each place."""
        places_t = torch.arange(text_bt.shape[1], device=text_bt.device)
        x_btc = self.dropout(self.bytes(text_bt) + self.places(places_t))
        for block in self.blocks:
            x_btc = block(x_btc)
        logits_btv: torch.Tensor = functional.linear(self.norm(x_btc), self.bytes.weight)
        return logits_btv


class Block(nn.Module):
    """Causal attention, then two linear layers, each after its norm and added to the stream."""

    def __init__(self, sizes: LanguageModelTask) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(sizes.width)
        self.attention = Attention(sizes)
        self.norm_2 = nn.LayerNorm(sizes.width)
        self.mlp = nn.Sequential()
        self.mlp.add_module("in", nn.Linear(sizes.width, 4 * sizes.width))
        self.mlp.add_module("gelu", nn.GELU())
        self.mlp.add_module("out", nn.Linear(4 * sizes.width, sizes.width))
        self.dropout = nn.Dropout(sizes.dropout)

    def forward(self, x_btc: torch.Tensor) -> torch.Tensor:
        """(B, T, C) to the same."""
        x_btc = x_btc + self.dropout(self.attention(self.norm_1(x_btc)))
        out_btc: torch.Tensor = x_btc + self.dropout(self.mlp(self.norm_2(x_btc)))
        return out_btc


class Attention(nn.Module):
    """Causal self-attention by torch's fused kernel."""

    def __init__(self, sizes: LanguageModelTask) -> None:
        super().__init__()
        self.heads = sizes.heads
        self.drop = sizes.dropout
        self.all = nn.Linear(sizes.width, 3 * sizes.width)
        self.out = nn.Linear(sizes.width, sizes.width)

    def forward(self, x_btc: torch.Tensor) -> torch.Tensor:
        """(B, T, C) to the same."""
        batch, length, width = x_btc.shape
        q, k, v = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)  # (B, H, T, C / H)
            for part in self.all(x_btc).split(width, dim=2)
        )
        mixed = functional.scaled_dot_product_attention(
            q, k, v, is_causal=True, dropout_p=self.drop if self.training else 0.0
        )
        out_btc: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out_btc
