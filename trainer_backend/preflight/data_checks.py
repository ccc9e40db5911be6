"""Checks of what was read, before there is a model: is it whole, is something learnt, do lengths fit."""

from __future__ import annotations

import hashlib
import itertools
import math
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import torch

from trainer_backend.config import RunConfig
from trainer_backend.errors import GradaccError
from trainer_backend.preflight.check_words import WHAT_BECAME
from trainer_backend.preflight.findings import Amendment, Finding, FirstWindow, State
from trainer_backend.preflight.first_window import DataRead
from trainer_backend.protocol import Scalar
from trainer_backend.schedule import horizon_of, warmup_samples_of
from trainer_backend.trainer.failures import print_whole, sentence_of

Findings = Iterator[Finding]
WRITTEN_TOKEN: Final = re.compile(r"<\|[^|<>\s]{1,40}\|>|<(?:start|end)_of_\w{1,20}>|\[/?INST\]|<</?SYS>>")
"""What chat templates write to mark turns."""
MOST_HASHED_FILES: Final = 20_000
MANY_REPEATS: Final = 0.01
"""Fewer are usual in real data."""


def timed(check: Callable[..., Findings], *given: Any) -> Findings:  # noqa: ANN401 - the check's own
    """A check's findings, each with what it took. What a run would refuse is one of them, as is a defect."""
    began = time.perf_counter()
    try:
        for finding in check(*given):
            now = time.perf_counter()
            yield _with_cost(finding, now - began)
            began = now
    except GradaccError as error:
        yield found("recipe-refused", "stop", sentence=str(error))
    except Exception as error:  # noqa: BLE001 - one check that fails leaves the others
        print_whole(error)
        yield found("not-tried", "waits", why=sentence_of(error))


def _with_cost(finding: Finding, duration_s: float) -> Finding:
    return finding if finding.duration_s else _replaced(finding, duration_s)


def _replaced(finding: Finding, duration_s: float) -> Finding:
    return Finding(
        code=finding.code,
        state=finding.state,
        values=finding.values,
        duration_s=duration_s,
        change=finding.change,
        may_be_accepted=finding.may_be_accepted,
    )


def found(code: str, state: State = "ok", change: Amendment | None = None, **values: Scalar) -> Finding:
    """A finding with its values."""
    return Finding(code=code, state=state, values=values, change=change)


# ------------------------------------------------------------------------------- what was read


def check_records(data: DataRead, window: FirstWindow) -> Findings:
    """How much was read, and whether anything is learnt."""
    what, count, left_out = _records(data, window)
    if left_out:
        yield found("data-read-in-part", "doubtful", count=count, what=what, left_out=left_out)
    else:
        yield found("data-read", count=count, what=what)
    if window.denominators and not any(window.denominators.values()):
        yield found("nothing-to-learn", "stop")
    elif window.denominators:
        weight = _figure(window.denominator or 0.0)
        yield found("learnable", count=window.samples, what="samples", weight=f"{weight} {window.unit}")


def _records(data: DataRead, window: FirstWindow) -> tuple[str, int | None, int]:
    encoder = getattr(data.task, "encoder", None)
    if data.config.kind == "causal-lm" and encoder is not None:
        return "records", encoder.read["records"], encoder.read["left-out"]
    skipped = sum(int(values.get("count") or 0) for code, values in data.heard if code == "images-skipped")
    if data.config.kind in {"segmentation", "image-classification"}:
        return "pictures", window.records, skipped
    return "samples", window.samples, 0


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:,.4g}"


def check_ids(data: DataRead) -> Findings:
    """Token ids below the embedding's rows."""
    if data.config.kind != "causal-lm":
        return
    task: Any = data.task
    encoded = data.datasets.train.encoded
    rows = task.embedding_rows()
    highest = int(encoded.tokens.max())
    if rows is None:
        return
    if highest < rows:
        yield found("ids-known", highest=highest, rows=rows)
        return
    places = (encoded.tokens >= rows).nonzero().flatten()
    samples = torch.searchsorted(encoded.starts, places, right=True) - 1
    first = int(samples[0])
    token = int(encoded.tokens[places[0]])
    yield found(
        "ids-beyond",
        "stop",
        Amendment(key="task.resize_embedding", value=True),
        place=encoded.source(first),
        token=repr(task.tokenizer.convert_ids_to_tokens(token)),
        highest=token,
        rows=rows,
        count=len(set(samples.tolist())),
    )


def check_lengths(data: DataRead, window: FirstWindow) -> Findings:
    """Whether samples were cut, split or left out."""
    encoder = getattr(data.task, "encoder", None)
    if data.config.kind != "causal-lm" or encoder is None:
        return
    changed = {why: encoder.read[why] for why in ("cut", "dropped", "split") if encoder.read[why]}
    if not changed:
        yield found("lengths-fit", longest=window.longest, allowed=window.longest_allowed)
    for why, count in changed.items():
        state: State = "ok" if why == "split" else "doubtful"
        yield found(
            "lengths-cut",
            state,
            count=count,
            samples=encoder.read["records"],
            allowed=window.longest_allowed,
            what=WHAT_BECAME[why],
        )


def check_n(config: RunConfig, samples: int | None) -> Findings:
    """N x b against the data's size."""
    effective = config.effective_batch
    if samples is None:
        yield found("n-unknown")
        return
    if effective > samples:
        size = config.accumulation.micro_batch_size
        change = Amendment(key="accumulation.gradient_accumulation_steps", value=max(1, samples // size))
        if config.accumulation.tail == "drop":
            yield found("n-drops-all", "stop", change, effective=effective, samples=samples)
        else:
            yield found("n-exceeds", "doubtful", change, effective=effective, samples=samples)
        return
    steps, rest = divmod(samples, effective)
    match config.accumulation.tail:
        case _ if not rest:
            yield found("n-fits-exactly", steps=steps)
        case "step":
            yield found("n-fits", steps=steps + 1, rest=rest)
        case "carry":
            yield found("n-carries", steps=steps, rest=rest)
        case "drop":
            yield found("n-drops", steps=steps, rest=rest)


def check_warmup(config: RunConfig, samples: int | None) -> Findings:
    """The warm-up against the run's length."""
    horizon = horizon_of(config, samples)
    warmup = warmup_samples_of(config, horizon)
    if not warmup:
        yield found("warmup-none")
    elif horizon is not None and warmup > horizon:
        change = Amendment(key="schedule.warmup_samples", value=horizon // 10)
        asked = config.schedule
        by_samples = asked.warmup_steps is None and not asked.warmup_ratio
        yield found(
            "warmup-exceeds", "doubtful", change if by_samples else None, warmup=warmup, horizon=horizon
        )
    else:
        batch = config.effective_batch
        all_steps = None if horizon is None else math.ceil(horizon / batch)
        yield found("warmup-fits", steps=math.ceil(warmup / batch), all_steps=all_steps)


# ------------------------------------------------------------------------------- both parts


def check_split(data: DataRead) -> Findings:
    """The same sample in training and validation, and repeats within training; byte for byte."""
    train, validation = data.datasets.train, data.datasets.validation
    digests, source = _told_apart(data.config.kind)
    if validation is None:
        yield found("split-none")
    elif digests is None:
        held = len(validation) if hasattr(validation, "__len__") else None
        yield found("split-held", held=held) if held is not None else found("split-uncounted")
    if digests is None:
        return
    first: dict[bytes, int] = {}
    repeats: list[int] = []
    total = 0
    for total, digest in enumerate(digests(train), 1):
        if first.setdefault(digest, total - 1) != total - 1:
            repeats.append(total - 1)
    if validation is not None:
        apart = list(digests(validation))
        shared = [number for number, digest in enumerate(apart) if digest in first]
        if shared:
            where = source(validation, shared[0])
            yield found("split-overlaps", "doubtful", count=len(shared), first=where)
        else:
            yield found("split-apart", held=len(apart))
    if len(repeats) > MANY_REPEATS * total and not getattr(data.config.data, "mix", ()):
        yield found("repeats", "doubtful", count=len(repeats), samples=total, first=source(train, repeats[0]))


def _told_apart(kind: str) -> tuple[Callable[[Any], Iterator[bytes]] | None, Callable[[Any, int], str]]:
    """What tells samples of a kind apart (None: not known), and where the one of a number comes from.

    Text for the byte-level model is split by file, and its samples are cut anywhere.
    """
    match kind:
        case "causal-lm":
            return _of_tokens, lambda items, number: str(items.encoded.source(number))
        case "segmentation" | "image-classification":
            return _of_files, lambda dataset, number: str(_files(dataset)[number])
        case _:
            return None, lambda _dataset, number: str(number)


def _of_tokens(items: Any) -> Iterator[bytes]:  # noqa: ANN401 - EncodedItems
    encoded = items.encoded
    tokens, starts = encoded.tokens.numpy(), encoded.starts.tolist()
    for begin, end in itertools.pairwise(starts):
        yield hashlib.blake2b(tokens[begin:end].tobytes(), digest_size=16).digest()


def _of_files(dataset: Any) -> Iterator[bytes]:  # noqa: ANN401 - Scenes or Pictures
    for path in _files(dataset):
        with path.open("rb") as file:
            yield hashlib.file_digest(file, "blake2b").digest()


def _files(dataset: Any) -> list[Path]:  # noqa: ANN401 - Scenes or Pictures
    """Each file once: tiles of one picture are no repeats."""
    paths = dict.fromkeys(dataset.source(index) for index in range(len(dataset)))
    return list(paths)[:MOST_HASHED_FILES]


# ------------------------------------------------------------------------------- the template


def check_template(data: DataRead) -> Findings:
    """Whether the chat template was made for this tokenizer, and what it does to answers."""
    if data.config.kind != "causal-lm":
        return
    task: Any = data.task
    codes = [code for code, _ in data.heard]
    uses_template = any(values.get("form") != "text" for code, values in data.heard if code == "read-as")
    if "no-chat-template" in codes:
        yield found("template-plain", "doubtful")
    elif uses_template:
        yield from _template_family(task)
    for code, name in (
        ("thinking-dropped", "thinking-dropped"),
        ("special-tokens-in-texts", "specials-in-texts"),
        ("answers-without-end", "answers-without-end"),
    ):
        for heard, values in data.heard:
            if heard == code:
                yield Finding(code=name, state="doubtful", values=values)


def _template_family(task: Any) -> Findings:  # noqa: ANN401 - a CausalLM
    for token in sorted(set(WRITTEN_TOKEN.findall(task.encoder.template.code))):
        pieces = task.tokenizer(token, add_special_tokens=False, verbose=False)["input_ids"]
        if len(pieces) > 1:
            yield found("template-foreign", "doubtful", token=token, pieces=len(pieces))
            return
    yield found("template-own")
