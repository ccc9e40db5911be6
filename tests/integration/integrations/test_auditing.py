"""The auditor in real transformers runs: what is right is called right, what is not is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from trainer_backend.integrations.audit import Finding
from trainer_backend.integrations.auditor import Auditor

VOCABULARY = 40
SMALL = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1,
    "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 32,
}  # fmt: skip


class Ragged(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Rows whose prompts have no label; 22 of them, so that the last window is short."""

    def __init__(self, *, first_label: bool = False) -> None:
        self._begin = 0 if first_label else 1

    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(index)
        tokens = torch.randint(0, VOCABULARY, (10,), generator=generator)
        labels = tokens.clone()
        labels[: self._begin and self._begin + index % 8] = -100
        return {"input_ids": tokens, "labels": labels}


def audited(tmp_path: Path, model: torch.nn.Module, data: Any, **more: Any) -> list[Finding]:
    """Findings over one epoch of micro-batches of 2, N = 4."""
    import transformers

    trainer = transformers.Trainer(
        model=model,
        args=transformers.TrainingArguments(
            output_dir=str(tmp_path / "out"),
            per_device_train_batch_size=2,
            gradient_accumulation_steps=4,
            num_train_epochs=1,
            report_to=[],
            use_cpu=True,
            disable_tqdm=True,
            save_strategy="no",
            logging_strategy="no",
            dataloader_pin_memory=False,
        ),
        train_dataset=data,
        **more,
    )
    with Auditor.of(trainer) as audit:
        trainer.train()
    assert len(audit.windows) == 3
    return [finding for finding in audit.findings() if finding.level == "fault"]


def test_a_llama_under_transformers_is_right(tmp_path: Path) -> None:
    """Ragged tokens and the short last window included."""
    import transformers

    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))
    assert audited(tmp_path, model, Ragged()) == []


def test_labels_that_no_loss_uses_are_counted_for_a_gpt2(tmp_path: Path) -> None:
    """Its first labels enter the divisor but not the loss: 9 of 10 tokens have one."""
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=2, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    found = audited(tmp_path, transformers.GPT2LMHeadModel(config), Ragged(first_label=True))
    assert [finding.code for finding in found] == ["divisor-wrong", "tail-wrong"]
    assert found[0].values["weight"] == pytest.approx(0.9, rel=1e-3)


def test_a_router_s_loss_is_taken_n_times_over(tmp_path: Path) -> None:
    """transformers adds it to every micro-batch undivided: N times what the model asks for."""
    import transformers

    torch.manual_seed(0)
    config = transformers.MixtralConfig(
        **SMALL,
        num_local_experts=2,
        num_experts_per_tok=1,
        output_router_logits=True,
        router_aux_loss_coef=0.1,
    )
    found = audited(tmp_path, transformers.MixtralForCausalLM(config), Ragged())
    assert [finding.code for finding in found] == ["auxiliary-times"]
    assert found[0].values["times"] == pytest.approx(4, rel=1e-3)


def test_a_loss_of_one_s_own_that_ignores_the_window_is_a_mean_of_means(tmp_path: Path) -> None:
    """compute_loss_func without num_items_in_batch."""
    import transformers

    def mean_loss(outputs: Any, labels: torch.Tensor, num_items_in_batch: Any = None) -> torch.Tensor:
        del num_items_in_batch
        logits = outputs["logits"] if isinstance(outputs, dict) else outputs.logits
        return torch.nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()) / 4

    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL))
    found = audited(tmp_path, model, Ragged(), compute_loss_func=mean_loss)
    assert [finding.code for finding in found] == ["mean-of-means", "tail-divided-by-n"]
