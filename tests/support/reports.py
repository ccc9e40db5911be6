"""Certificates made by hand, for what shows them."""

from __future__ import annotations

from typing import Any

from trainer_backend.verify.report import Comparison, Floor, Layer, Term, VerifyReport


def comparison(**changed: Any) -> Comparison:
    """One window that holds."""
    values: dict[str, Any] = {
        "steps": 4, "fold": "equal", "sizes": (4, 4, 4, 4), "precision": "fp64", "error": 2e-16,
        "definition_error": 2e-16, "limit": 1e-12, "holds": True, "equals_large_batch": True, "alpha": 1.0,
        "cosine": 1.0, "loss": 2.5, "denominator": 16.0, "gradient_norm": 3.0,
        "worst_layers": (Layer(name="head.weight", error=3e-16, alpha=1.0, cosine=1.0, holds=True),),
    }  # fmt: skip
    return Comparison(**(values | changed))


def report(**changed: Any) -> VerifyReport:
    """A certificate of a right recipe."""
    values: dict[str, Any] = {
        "verdict": "equal", "recipe": "words", "kind": "custom", "device": "cpu",
        "parameters": 1234, "samples": 16,
        "loss": 2.5, "denominator": 16.0, "gradient_norm": 3.0, "version": "0.1", "torch_version": "2.14",
        "terms": (Term(name="loss", loss=2.5, denominator=16.0, additive=True, stated=False),),
        "floors": (Floor(precision="fp64", one_fold_error=0.0, repeat=0.0, order=1e-16),),
        "comparisons": (
            comparison(),
            comparison(fold="ragged", sizes=(6, 2, 6, 2)),
            comparison(precision="fp32", error=1e-7, definition_error=1e-7, limit=1e-5),
        ),
    }  # fmt: skip
    return VerifyReport(**(values | changed))
