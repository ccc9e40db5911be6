"""The head of a causal model, told apart from the rest so that its loss can be taken in chunks.

Letters: b rows, s tokens of a row, h hidden width, v vocabulary.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from typing import Any, Final

import torch

from trainer_backend.tasks.causal_lm.chunked import LogitShape, chunked_cross_entropy, chunked_hits
from trainer_backend.tasks.causal_lm.probes import probe, probed_tokens

PROBE_SPREAD: Final = 30.0
"""Standard deviation of what is put in the place of the head's output: soft-capping shows."""
PROBE_TOLERANCE: Final = 1e-6
"""Some models round those fp64 numbers to fp32."""
PROVEN_WITHIN: Final = 2e-2
"""Of the loss, in whatever precision the model's weights are."""


@dataclasses.dataclass
class Scored:
    """What the head is asked for instead of logits, and what it answers."""

    targets: torch.Tensor
    """int64 (b, s)"""
    weights: torch.Tensor
    """(b, s)"""
    label_smoothing: float = 0.0
    counts_hits: bool = False
    """Give the weight of the tokens that are the likeliest, not the loss."""
    total: torch.Tensor | None = None


class ScoringHead(torch.nn.Linear):
    """A model's own head under another class: with something to score it gives the loss, and no logits."""

    scored: Scored | None = None
    shape: LogitShape = LogitShape()

    def forward(self, hidden_bsh: torch.Tensor) -> torch.Tensor:
        """Logits (b, s, v), or (b, 0, v) while something is scored: what shapes them has nothing to do."""
        if self.scored is None:
            return super().forward(hidden_bsh)
        self._score(self.scored, hidden_bsh)
        return super().forward(hidden_bsh[:, :0].detach())

    def _score(self, scored: Scored, hidden_bsh: torch.Tensor) -> None:
        if hidden_bsh.shape[:2] != scored.targets.shape:
            message = f"The head got {tuple(hidden_bsh.shape)} for targets {tuple(scored.targets.shape)}."
            raise RuntimeError(message)
        if scored.counts_hits:
            scored.total = chunked_hits(hidden_bsh, self.weight, self.bias, scored.targets, scored.weights)
            return
        shape = dataclasses.replace(self.shape, label_smoothing=scored.label_smoothing)
        scored.total = chunked_cross_entropy(
            hidden_bsh, self.weight, self.bias, scored.targets, scored.weights, shape
        )


class Scoring:
    """Hooks around the whole model's forward: what is to be scored goes in, the loss comes out beside it.

    So the loss is an output of the forward: what wraps the module (sharding, compiling) sees it like any.
    """

    KEYWORD: Final = "scored"

    def __init__(self, head: str) -> None:
        self.head = head
        """The head's name under the module that has the hooks."""

    def before(
        self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Take what is to be scored out of the keywords, and give it to the head."""
        self._head(module).scored = kwargs.pop(self.KEYWORD, None)
        return args, kwargs

    def after(self, module: torch.nn.Module, _args: tuple[Any, ...], output: Any) -> Any:  # noqa: ANN401 - ModelOutput
        """Put the loss where the model's own would be."""
        head = self._head(module)
        scored, head.scored = head.scored, None
        if scored is not None:
            output.loss = scored.total
        return output

    def _head(self, module: torch.nn.Module) -> ScoringHead:
        head = module.get_submodule(self.head)
        assert isinstance(head, ScoringHead)
        return head


def scores_in_chunks(model: torch.nn.Module) -> bool:
    """Whether `model(…, scored=Scored(…))` may be asked."""
    return isinstance(vars(model).get("scoring"), Scoring)


def vocabulary_of(model: Any) -> int:  # noqa: ANN401 - a PreTrainedModel or a PeftModel
    """Rows of the head, or what the configuration says where the head is not known."""
    head = model.get_output_embeddings()
    weight = getattr(head, "weight", None)
    if isinstance(weight, torch.Tensor) and weight.dim() == 2:
        return int(weight.shape[0])
    return int(getattr(model.config.get_text_config(), "vocab_size", 0) or 0)


@functools.cache
def _scoring_class() -> type[ScoringHead]:
    """`ScoringHead`, its sum left out of compiled graphs; to say so loads dynamo, which takes seconds."""
    disable: Any = torch.compiler.disable
    ScoringHead._score = disable(ScoringHead._score)  # type: ignore[method-assign]  # noqa: SLF001
    return ScoringHead


def score_in_chunks(model: Any) -> str:  # noqa: ANN401 - a PreTrainedModel or a PeftModel
    """Make `model(…, scored=Scored(…))` give a chunked loss; else the reason, and the model is as it was."""
    found = next(
        ((name, module) for name, module in model.named_modules() if module is _head_of(model)), None
    )
    if found is None:
        return "its output layer is not found"
    name, head = found
    if type(head) is not torch.nn.Linear:
        return f"its output layer is a {type(head).__name__}, not a plain linear layer"
    shape = _probed_shape(model, head)
    if shape is None:
        return "its logits are not its output layer's times a known scale, soft-capped or not"
    plain: Any = head
    plain.__class__, plain.shape = _scoring_class(), shape
    scoring = Scoring(name)
    hooks = (
        model.register_forward_pre_hook(scoring.before, with_kwargs=True),
        model.register_forward_hook(scoring.after),
    )
    if _is_proven(model):
        model.scoring = scoring
        return ""
    for hook in hooks:
        hook.remove()
    plain.__class__ = torch.nn.Linear
    return "its loss is not that of its output layer alone"


def _head_of(model: Any) -> Any:  # noqa: ANN401 - a module or None
    head = model.get_output_embeddings()
    trained = getattr(head, "modules_to_save", None)  # of peft: a trained copy beside the original
    return trained[head.active_adapters[0]] if trained else head


def candidates(config: Any) -> Iterator[LogitShape]:  # noqa: ANN401 - a PretrainedConfig
    """The plain head first, then what the configuration's own numbers could mean."""
    numbers = {
        name: float(value)
        for name, value in config.get_text_config().to_dict().items()
        if ("logit" in name or "lm_head" in name)
        and isinstance(value, int | float)
        and not isinstance(value, bool)
        and value > 0
    }
    caps = [None, *(value for name, value in numbers.items() if "cap" in name)]
    scales = [1.0, *(scale for value in numbers.values() for scale in (value, 1 / value))]
    for cap, scale in itertools.product(caps, scales):
        yield LogitShape(scale=scale, softcap=cap)


@torch.no_grad()
def _probed_shape(model: Any, head: torch.nn.Linear) -> LogitShape | None:  # noqa: ANN401
    """What becomes of the head's output, seen on widely spread numbers in its stead; None: unknown."""
    put: list[torch.Tensor] = []

    def replaced(_module: torch.nn.Module, _args: Any, output: torch.Tensor) -> torch.Tensor:  # noqa: ANN401
        spread = torch.randn(output.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        put.append((PROBE_SPREAD * spread).to(output.device))
        return put[-1]

    handle = head.register_forward_hook(replaced)
    try:
        logits = probe(model, probed_tokens(model)).logits
    finally:
        handle.remove()
    if len(put) != 1 or put[0].shape != logits.shape:
        return None
    for shape in candidates(model.config):
        expected = put[0] * shape.scale
        if shape.softcap is not None:
            expected = shape.softcap * torch.tanh(expected / shape.softcap)
        if float((expected - logits).abs().max()) <= PROBE_TOLERANCE * float(expected.abs().max()):
            return shape
    return None


def _is_proven(model: Any) -> bool:  # noqa: ANN401 - a PreTrainedModel or a PeftModel
    """Whether the scored forward gives the loss of the logits, on a few tokens."""
    tokens = probed_tokens(model)
    targets, weights = tokens.roll(-1, dims=1), torch.ones(tokens.shape, device=tokens.device)
    logits_bsv = probe(model, tokens).logits
    scored = probe(model, tokens, scored=Scored(targets, weights)).loss
    expected = torch.nn.functional.cross_entropy(
        logits_bsv.flatten(0, 1).double(), targets.flatten(), reduction="sum"
    )
    return bool((expected - scored).abs() <= PROVEN_WITHIN * expected.abs())
