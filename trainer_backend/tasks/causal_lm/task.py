"""The task of kind "causal-lm": model, data, loss, samples of its writing, and what it leaves behind.

Letters: b rows, s tokens of a row, v vocabulary.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from trainer_backend.errors import GradaccError, UsageError
from trainer_backend.kinds.causal_lm import CausalLMData, CausalLMTask
from trainer_backend.tasks import Datasets, LossTerm
from trainer_backend.tasks.built_in import BuiltIn, unheard
from trainer_backend.tasks.causal_lm.answers import Answers
from trainer_backend.tasks.causal_lm.encoding import Encoded, Encoder
from trainer_backend.tasks.causal_lm.gathering import read_datasets
from trainer_backend.tasks.causal_lm.head import Scored, score_in_chunks, scores_in_chunks, vocabulary_of
from trainer_backend.tasks.causal_lm.layout import (
    IGNORED,
    EncodedItems,
    Rows,
    budget_groups,
    collate,
    packed_groups,
    split_rows,
)
from trainer_backend.tasks.causal_lm.loading import embedding_rows, load_model, load_tokenizer, prepare_model
from trainer_backend.tasks.causal_lm.probes import check_packing, refuse_sight_of_later, takes_positions
from trainer_backend.tasks.causal_lm.spans import Tokens, specials_of
from trainer_backend.tasks.causal_lm.templates import Template
from trainer_backend.tasks.causal_lm.turns import Turn, Unfit
from trainer_backend.tasks.causal_lm.writing import continue_text
from trainer_backend.tasks.continuations import Continuation, OnText

AUXILIARY: Final = "auxiliary"
CHUNKED_ABOVE: Final = 16_384
"""Vocabularies above this take the chunked loss by themselves."""
DEFINED_UP_TO: Final = 2**27
"""Logits that a certificate holds at once to prove the chunked loss: 1 GiB in fp64, and its gradient's."""


class CausalLM(BuiltIn[CausalLMTask, CausalLMData]):
    """Fine-tunes a causal language model. See `trainer_backend.tasks.Task` for what each method gives."""

    def __post_init__(self) -> None:
        task = self.task
        if task.token_budget is not None and task.layout == "packing":
            message = (
                'task.token_budget is for layout = "padding"; a packed row holds task.max_length tokens.'
            )
            raise UsageError(message)
        self.tokenizer = load_tokenizer(task, self.folder)
        pad = self.tokenizer.pad_token_id
        # Padding is neither attended nor scored, so any token will do where a tokenizer has none.
        self._pad = pad if pad is not None else self.tokenizer.eos_token_id or 0
        self.collate = partial(
            collate,
            pad_token=self._pad,
            packed=task.layout == "packing",
            normalization=self.normalization,
        )
        self._auxiliary_ratio = 0.0
        self._takes_positions = True
        self._masks_padding = True
        self.refuses_unknown_ids = True
        """False: ids beyond the embedding come through, for who shows them (a preview)."""
        self.encoder: Encoder | None = None
        """What `datasets()` read with; it has counted the records."""
        self._base: torch.nn.Module | None = None

    def model(self) -> torch.nn.Module:
        """The model with its adapters, checked for packing where that is asked."""
        model = prepare_model(
            load_model(self.task, self.folder, self.warn),
            self.task,
            rows=len(self.tokenizer) if self._grows else 0,
            new_tokens=self.tokenizer.convert_tokens_to_ids(list(self.task.added_tokens)),
        )
        config: Any = model.config
        self._auxiliary_ratio = float(getattr(config, "router_aux_loss_coef", 0.0) or 0.0)
        if self._auxiliary_ratio and hasattr(config, "output_router_logits"):
            config.output_router_logits = True  # else there is no auxiliary loss
        self._takes_positions = takes_positions(model)
        # Later tokens hide nothing from earlier ones in a causal model, so padding at the end needs no mask
        # (and attention is quicker without). An auxiliary loss must not count padding.
        refuse_sight_of_later(model, self.task.model)
        self._masks_padding = bool(self._auxiliary_ratio)
        if self.task.layout == "packing":
            check_packing(model, self.task.model, takes_positions=self._takes_positions)
        self._choose_loss(model)
        return model

    @property
    def _grows(self) -> bool:
        """Whether the embedding gets rows for tokens that it has none for."""
        return self.task.resize_embedding or bool(self.task.added_tokens)

    def _choose_loss(self, model: torch.nn.Module) -> None:
        """Chunked where that is asked, or worth it and possible; what is decided by itself is said."""
        task, vocabulary = self.task, vocabulary_of(model)
        if task.loss == "full" or (task.loss == "auto" and vocabulary <= CHUNKED_ABOVE):
            return
        reason = score_in_chunks(model)
        if reason and task.loss == "chunked":
            message = (
                f'task.loss = "chunked" cannot be used with {task.model}: {reason}. Use "full" or "auto".'
            )
            raise UsageError(message)
        if reason:
            self.warn("loss-not-chunked", {"vocabulary": vocabulary, "reason": reason})
        elif task.loss == "auto":
            self.warn("loss-chunked", {"vocabulary": vocabulary})

    def datasets(self) -> Datasets:
        """Encoded training and validation data; a share is held out where no validation data is named."""
        self.encoder = self._encoder()
        train, validation = read_datasets(self, self.encoder)
        return Datasets(
            train=self._items(train), validation=None if validation is None else self._items(validation)
        )

    def _encoder(self) -> Encoder:
        task = self.task
        rows = self.embedding_rows() if self.refuses_unknown_ids else None
        return Encoder(self.tokenizer, task, self.data, self.warn, folder=self.folder, vocabulary=rows)

    def embedding_rows(self) -> int | None:
        """Ids that the model has an embedding for; None where it grows, or its configuration does not say."""
        return None if self._grows else embedding_rows(self.task, self.folder) or None

    def _items(self, encoded: Encoded) -> EncodedItems:
        task, groups = self.task, None
        if task.layout == "packing":
            groups = packed_groups(encoded.lengths(), task.max_length, self.seed)
        elif task.token_budget is not None:
            longest = max(encoded.lengths())
            if longest > task.token_budget:
                message = (
                    f"task.token_budget = {task.token_budget} is less than the longest sample"
                    f" ({longest} tokens). Raise it, or lower task.max_length."
                )
                raise UsageError(message)
            groups = budget_groups(encoded.lengths(), task.token_budget, self.seed)
        return EncodedItems(encoded, groups)

    def weights(self, batch: Rows) -> dict[str, float]:
        """Denominators, counted on the host before the forward."""
        weight = batch.weight
        return {"loss": weight, AUXILIARY: weight} if self._auxiliary_ratio else {"loss": weight}

    def count(self, batch: Rows) -> tuple[int, int]:
        """EncodedItems and tokens with a loss."""
        return batch.items, int((batch.targets != IGNORED).sum())

    def split(self, batch: Rows, parts: int) -> list[Rows]:
        """Cut a micro-batch into parts by its rows."""
        return split_rows(batch, parts)

    def loss(self, model: torch.nn.Module, batch: Rows) -> list[LossTerm]:
        """Cross-entropy of the shifted tokens in sum form, and a router's auxiliary loss."""
        return self._terms(model, batch, in_chunks=scores_in_chunks(model))

    def definition(self, model: torch.nn.Module, batch: Rows) -> list[LossTerm]:
        """The same from all logits at once, as far as they fit."""
        tokens, vocabulary = batch.tokens.numel(), vocabulary_of(model)
        in_chunks = tokens * vocabulary > DEFINED_UP_TO and scores_in_chunks(model)
        if in_chunks:
            self.warn("loss-not-proven", {"tokens": tokens, "vocabulary": vocabulary})
        return self._terms(model, batch, in_chunks=in_chunks)

    def _terms(self, model: torch.nn.Module, batch: Rows, *, in_chunks: bool) -> list[LossTerm]:
        smoothing = self.task.label_smoothing
        if in_chunks:
            outputs = self._forward(model, batch, Scored(batch.targets, batch.weights, smoothing))
            total = outputs.loss
        else:
            outputs = self._forward(model, batch)
            total = _weighted_cross_entropy(outputs.logits, batch.targets, batch.weights, smoothing)
        main = LossTerm(total, batch.weight)
        if not self._auxiliary_ratio:
            return [main]
        if outputs.get("aux_loss") is None:  # a coefficient that the model makes no use of, as Llama 4's
            return [main, LossTerm(total * 0, batch.weight, AUXILIARY)]
        # A property of the micro-batch: it takes the main term's weight, a weighted mean over them.
        auxiliary = outputs["aux_loss"].to(total.dtype).to(total.device) * self._auxiliary_ratio
        return [main, LossTerm(auxiliary * batch.weight, batch.weight, AUXILIARY, per_micro_batch=True)]

    def evaluate(self, model: torch.nn.Module, batch: Rows) -> dict[str, LossTerm]:
        """How many tokens are the likeliest one."""
        if scores_in_chunks(model):
            right = self._forward(model, batch, Scored(batch.targets, batch.weights, counts_hits=True)).loss
        else:
            logits_bsv = self._forward(model, batch).logits
            right = ((logits_bsv.argmax(-1) == batch.targets) * batch.weights).sum()
        return {"token_accuracy": LossTerm(right, batch.weight)}

    def _forward(self, model: torch.nn.Module, batch: Rows, scored: Scored | None = None) -> Any:  # noqa: ANN401
        options: dict[str, Any] = {}
        if self._masks_padding and batch.attended is not None:
            options["attention_mask"] = batch.attended
        if self._takes_positions:
            options["position_ids"] = batch.positions
        if scored is not None:
            options["scored"] = scored
        outputs = model(input_ids=batch.tokens, use_cache=False, **options)
        unknown = [
            name
            for name, value in outputs.items()
            if name.endswith("loss") and name not in ("loss", "aux_loss") and value is not None
        ]
        if unknown:
            message = (
                f"{type(model).__name__} returns an extra loss, {unknown[0]}, whose denominator is not known,"
                " so it cannot be accumulated exactly. Use a custom task that says how it is summed."
            )
            raise GradaccError(message)
        return outputs

    # ------------------------------------------------------------ beside the training

    @torch.no_grad()
    def artifacts(self, model: torch.nn.Module, folder: Path) -> list[tuple[str, Path, str]]:
        """Answers to the recipe's prompts, one text file: (kind, path, caption)."""
        if not self.task.generate:
            return []
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / "samples.txt"
        # Asked as it is trained: as a chat's message where the data are chats, unless it is written as one.
        are_chats = self.has_template and self.encoder is not None and self.encoder.read["dialogues"] > 0
        written = []
        for prompt in self.task.generate:
            as_chat = are_chats and not specials_of(self.tokenizer).one.search(prompt)
            answer = self.write(
                model, prompt, as_chat=as_chat, most_tokens=self.task.generate_tokens, on_text=_unread
            )
            written.append(f"{prompt}\n\n{answer.text}" if as_chat else prompt + answer.text)
        path.write_text("\n\n".join(written), encoding="utf-8")
        return [("text", path, f"{len(written)} samples")]

    # ------------------------------------------------------------ asked by a person

    @functools.cached_property
    def _template(self) -> Template:
        chosen = self.task.chat_template
        return Template(self.tokenizer, self.folder / chosen if chosen else None)

    @property
    def has_template(self) -> bool:
        """Whether a prompt can be posed as a message of a chat."""
        return not self._template.is_plain

    @property
    def has_thinking(self) -> bool:
        """Whether the template can turn reasoning on and off."""
        return self.has_template and self._template.has_thinking_switch

    @torch.no_grad()
    def write(
        self,
        model: torch.nn.Module,
        prompt: str,
        *,
        as_chat: bool,
        thinks: bool = False,
        most_tokens: int,
        temperature: float = 0.0,
        on_text: OnText,
    ) -> Continuation:
        """What the model writes after a prompt. Raises UsageError."""
        ends = [] if self.tokenizer.eos_token_id is None else [self.tokenizer.eos_token_id]
        if as_chat:
            way = thinks if self.has_thinking else None
            try:
                text = self._template.render((Turn("user", prompt),), (), asks=True, thinks=way)
            except Unfit as error:
                message = f"{str(error)[:1].upper()}{str(error)[1:]}. Ask without the chat template."
                raise UsageError(message) from error
            ids = Tokens(self.tokenizer).ids(text)
            turn_end = Answers(self._template, specials_of(self.tokenizer)).turn_end
            ends += [self.tokenizer.convert_tokens_to_ids(turn_end)] if turn_end else []
        else:
            ids = self.tokenizer(prompt)["input_ids"]
        return continue_text(
            model,
            self.tokenizer,
            ids,
            most_tokens=most_tokens,
            temperature=temperature,
            ends=ends,
            pad=self._pad,
            on_text=on_text,
        )

    @contextlib.contextmanager
    def base_model(self, model: torch.nn.Module) -> Iterator[torch.nn.Module]:
        """The model as it was before training, on the same device: without adapters, or loaded again."""
        if self.task.method != "full":
            with model.disable_adapter():  # type: ignore[operator]  # a PeftModel
                yield model
            return
        if self._base is None:
            base = load_model(self.task, self.folder, unheard)
            rows = len(self.tokenizer) if self._grows else 0
            prepared = prepare_model(base, self.task, rows=rows)
            self._base = prepared.to(next(model.parameters()).device).eval()
        yield self._base

    @property
    def exports(self) -> tuple[str, ...]:
        """What `hand_over` can write."""
        match self.task.method:
            case "full":
                return ("model",)
            case "qlora":
                return ("adapter",)
            case _:
                return ("merged", "adapter")

    def hand_over(self, model: torch.nn.Module, what: str, folder: Path) -> Path:
        """Write the weights as `what` of `exports`. Raises UsageError."""
        if what not in self.exports:
            message = f"A run with method = {self.task.method} gives {' or '.join(self.exports)}, not {what}."
            raise UsageError(message)
        if what == "merged":
            merged = copy.deepcopy(model).cpu().merge_and_unload()  # type: ignore[operator]
            return self._save(merged, folder)
        return self._save(model, folder)

    def export(self, model: torch.nn.Module, folder: Path) -> list[Path]:
        """Save what plain transformers and peft load: adapters or the model, and the tokenizer."""
        if self.task.method == "full":
            return [self._save(model, folder / "model")]
        saved = [self._save(model, folder / "adapter")]
        if self.task.export_merged:
            if self.task.method == "qlora":
                self.warn("merged-export-not-offered", {"method": "qlora"})
            else:
                saved.append(self.hand_over(model, "merged", folder / "merged"))
        return saved

    def _save(self, model: Any, folder: Path) -> Path:  # noqa: ANN401 - a PreTrainedModel or a PeftModel
        # Rows that were added are in no other file.
        options = {"save_embedding_layers": True} if self._grows and hasattr(model, "peft_config") else {}
        model.save_pretrained(folder, **options)
        self.tokenizer.save_pretrained(folder)
        return folder


def _unread(_text: str) -> None:
    """Where nobody reads along."""


def _weighted_cross_entropy(
    logits_bsv: torch.Tensor, targets_bs: torch.Tensor, weights_bs: torch.Tensor, label_smoothing: float
) -> torch.Tensor:
    """Sum over valid targets of weight x cross-entropy, in fp32 (fp64 for fp64 logits)."""
    dtype = torch.float64 if logits_bsv.dtype == torch.float64 else torch.float32
    losses = torch.nn.functional.cross_entropy(
        logits_bsv.flatten(0, 1).to(dtype),
        targets_bs.flatten(),
        reduction="none",
        ignore_index=IGNORED,
        label_smoothing=label_smoothing,
    )
    return (losses * weights_bs.flatten().to(dtype)).sum()
