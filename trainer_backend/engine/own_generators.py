"""Generators of random numbers that user code holds itself: found, kept, put back, and seeded.

torch, NumPy and Python each have global ones, which everybody knows how to seed. A dropout, a transform
or a collate may hold one of its own (`numpy.random.default_rng`, `torch.Generator`, `random.Random`), and
no library knows of it.
"""

from __future__ import annotations

import functools
import json
import random
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch

_DEEPEST: Final = 4
"""Attributes of attributes: a data set's transform's step's generator lies at 3."""
_MOST_ENTRIES: Final = 64
"""Entries looked at of a list or dict: a data set's million samples hold no generator."""
_MOST_HOLDERS: Final = 2_000
"""Objects looked into for one owner."""
_NOTHING_INSIDE: Final = frozenset(
    {int, float, bool, str, bytes, complex, type(None), torch.Tensor, torch.nn.Parameter, torch.dtype}
)
_OF_MODULES: Final = frozenset(vars(torch.nn.Module()))
"""What every module has: its children are reached by name, its hooks hold no state of the user's."""


class OwnGenerator:
    """One generator of any of the three libraries, with the path on which it was found."""

    def __init__(self, path: str, generator: Any) -> None:  # noqa: ANN401 - of three libraries
        self.path = path
        self.generator = generator

    def get_state(self) -> Any:  # noqa: ANN401 - each library's own
        """A copy of its state."""
        match self.generator:
            case torch.Generator():
                return self.generator.get_state()
            case random.Random():
                return self.generator.getstate()
            case _ if hasattr(self.generator, "bit_generator"):
                return self.generator.bit_generator.state
            case _:  # RandomState, which also keeps a second normal number
                return self.generator.get_state(legacy=False)

    def set_state(self, state: Any) -> None:  # noqa: ANN401 - what `get_state` gave
        """Go back to where it stood."""
        match self.generator:
            case torch.Generator():
                self.generator.set_state(state)
            case random.Random():
                self.generator.setstate(state)
            case _ if hasattr(self.generator, "bit_generator"):
                self.generator.bit_generator.state = state
            case _:
                self.generator.set_state(state)

    def seed(self, value: int) -> None:
        """Start again with a seed of 64 bits."""
        match self.generator:
            case torch.Generator():
                self.generator.manual_seed(value)
            case random.Random():
                self.generator.seed(value)
            case _ if hasattr(self.generator, "bit_generator"):
                kind = type(self.generator.bit_generator)
                self.generator.bit_generator.state = kind(value).state
            case _:
                self.generator.seed(value & 0xFFFFFFFF)

    def packed(self) -> torch.Tensor:
        """Its state as a checkpoint holds it: torch's own bytes, or JSON's."""
        state = self.get_state()
        if isinstance(state, torch.Tensor):
            return state
        text = json.dumps(state, default=_plain).encode()
        return torch.frombuffer(bytearray(text), dtype=torch.uint8)

    def unpack(self, packed: torch.Tensor) -> None:
        """Go back to a state that `packed` gave. Raises ValueError, TypeError or RuntimeError."""
        if isinstance(self.generator, torch.Generator):
            self.set_state(packed)
            return
        state = json.loads(packed.numpy().tobytes())
        if isinstance(self.generator, random.Random):
            version, numbers, gauss = state
            state = (version, tuple(numbers), gauss)
        self.set_state(_arrays(state))


def own_generators(*owners: Any) -> Iterator[OwnGenerator]:  # noqa: ANN401 - any objects
    """Generators that a model's modules, or other objects, hold, with their paths; each once.

    Looked for in attributes, lists, dicts and closures, some levels deep.
    """
    search = _Search()
    for owner in owners:
        yield from search.of(owner)


class _Search:
    """One search, which looks into no object twice."""

    def __init__(self) -> None:
        self._seen: set[int] = set()
        self._left = 0

    def of(self, owner: Any) -> Iterator[OwnGenerator]:  # noqa: ANN401 - any object
        """The generators of one owner."""
        self._left = _MOST_HOLDERS
        name = getattr(owner, "__qualname__", type(owner).__name__)
        if isinstance(owner, torch.nn.Module):
            for path, module in owner.named_modules():
                yield from self._attributes(module, f"{name}.{path}{'.' if path else ''}", _DEEPEST)
        else:
            yield from self._look(owner, name, _DEEPEST + 1)

    def _attributes(self, holder: Any, path: str, depth: int) -> Iterator[OwnGenerator]:  # noqa: ANN401
        known = _OF_MODULES if isinstance(holder, torch.nn.Module) else frozenset()
        for name, value in list(getattr(holder, "__dict__", {}).items()):
            if name not in known and type(value) not in _NOTHING_INSIDE:
                yield from self._look(value, f"{path}{name}", depth)

    def _look(self, value: Any, path: str, depth: int) -> Iterator[OwnGenerator]:  # noqa: ANN401
        if type(value) in _NOTHING_INSIDE or id(value) in self._seen or not depth or not self._left:
            return
        self._seen.add(id(value))
        self._left -= 1
        if is_generator(value):
            yield OwnGenerator(path, value)
        elif isinstance(value, torch.nn.Module):
            yield from self._attributes(value, f"{path}.", depth - 1)
            yield from self._look(list(value.children()), path, depth)
        else:
            for name, inside in _inside(value):
                yield from self._look(inside, f"{path}{name}", depth - 1)


def _inside(value: Any) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - any object
    """What an object holds: entries, what a function was made with, or attributes."""
    match value:
        case type() | types.ModuleType():
            return
        case list() | tuple():
            yield from ((f"[{place}]", entry) for place, entry in enumerate(value[:_MOST_ENTRIES]))
        case dict():
            yield from ((f"[{key!r}]", entry) for key, entry in list(value.items())[:_MOST_ENTRIES])
        case functools.partial():
            yield from ((".func", value.func), (".args", value.args), (".keywords", value.keywords))
        case types.MethodType():
            yield "", value.__self__
        case types.FunctionType():
            cells = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
            yield from ((f".{name}", _content(cell)) for name, cell in cells)
        case _:
            yield from ((f".{name}", inside) for name, inside in list(getattr(value, "__dict__", {}).items()))


def _content(cell: types.CellType) -> Any:  # noqa: ANN401 - any object
    try:
        return cell.cell_contents
    except ValueError:  # a name that was not bound yet
        return None


def is_generator(value: Any) -> bool:  # noqa: ANN401 - any object
    """Whether this is a generator of torch, NumPy or Python, and none of their global ones."""
    if isinstance(value, torch.Generator):
        return value is not torch.default_generator
    if isinstance(value, random.Random):
        return not isinstance(value, random.SystemRandom) and value is not getattr(random, "_inst", None)
    numpy = sys.modules.get("numpy")
    if numpy is None or not isinstance(value, numpy.random.Generator | numpy.random.RandomState):
        return False
    return value is not getattr(numpy.random.mtrand, "_rand", None)


def _plain(value: Any) -> Any:  # noqa: ANN401 - NumPy's
    """NumPy's arrays and integers for JSON."""
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        return {"array": value.tolist(), "dtype": str(value.dtype)} if value.shape else value.item()
    message = f"A generator's state holds {type(value).__name__}, which a checkpoint cannot hold."
    raise TypeError(message)


def _arrays(state: Any) -> Any:  # noqa: ANN401 - from JSON
    """JSON's state with NumPy's arrays again."""
    if isinstance(state, Mapping):
        if state.keys() == {"array", "dtype"}:
            import numpy  # noqa: ICN001, PLC0415 - only where the user's own generator is NumPy's

            return numpy.array(state["array"], dtype=state["dtype"])
        return {key: _arrays(value) for key, value in state.items()}
    return state
