"""Fine-tuning of causal language models from the transformers library (kind = "causal-lm")."""

from trainer_backend.tasks.causal_lm.task import CausalLM

__all__ = ["CausalLM"]
