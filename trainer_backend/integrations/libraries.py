"""Which library an object is of, without importing any, and methods of it that are lent for a while."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

KNOWN: Final = frozenset({"transformers", "lightning", "pytorch_lightning", "accelerate"})


def package_of(trainer: Any) -> str:  # noqa: ANN401 - any library's object
    """The library that defines the object's class or the nearest base of it; "" for any other."""
    packages = (base.__module__.partition(".")[0] for base in type(trainer).__mro__)
    return next((package for package in packages if package in KNOWN), "")


class BorrowedMethods:
    """Methods of a user's object, replaced until `give_back`."""

    def __init__(self) -> None:
        self._taken: list[tuple[Any, str, Any, bool]] = []

    def replace(self, owner: Any, name: str, wrap: Callable[[Any], Any]) -> None:  # noqa: ANN401 - any object
        """Put `wrap(method)` in the place of `owner`'s method `name`."""
        own = name in vars(owner)
        before = getattr(owner, name)
        after = wrap(before)
        setattr(owner, name, after)
        self._taken.append((owner, name, before if own else None, own))

    def give_back(self) -> None:
        """Put every method back, last one first; a second call does nothing."""
        while self._taken:
            owner, name, before, own = self._taken.pop()
            if own:
                setattr(owner, name, before)
            else:
                # The method was the class's: the wrapper hid it, so taking the wrapper off is enough.
                vars(owner).pop(name, None)
