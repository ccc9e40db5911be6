"""Which library an object is of, without importing any."""

from __future__ import annotations

from typing import Any, Final

KNOWN: Final = frozenset({"transformers", "lightning", "pytorch_lightning", "accelerate"})


def package_of(trainer: Any) -> str:  # noqa: ANN401 - any library's object
    """The library that defines the object's class or the nearest base of it; "" for any other."""
    packages = (base.__module__.partition(".")[0] for base in type(trainer).__mro__)
    return next((package for package in packages if package in KNOWN), "")
