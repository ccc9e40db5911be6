"""How the source is built, measured from the source: `python -m tests.bench.structure`.

    folds_of_facts                 places that fold facts to "what is so now": trainer_backend.run_facts,
                                   and each module besides that tells two or more of the folded facts apart
    state_enums                    enumerations of a run's states
    import_cycles                  groups of modules that reach each other, by whatever imports
    data_modules_outside_contract  modules of the window's package that reach no Qt, kept so by no contract
    code_lines                     lines of both packages without blanks, comments and docstrings
    public_class_names_twice       names that two public classes bear
    module_stems_twice             names that two modules bear

Nothing is imported or run. The last line is one JSON object; what was counted stands above it, by name.
"""

from __future__ import annotations

import ast
import io
import json
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("gradacc_gui", "trainer_backend")

FOLDED: Final = frozenset({"RunStarted", "RolledBack", "AccumulationChanged", "SettingChanged"})
"""Facts that change what is so now. Who tells two of them apart keeps a state of its own."""
FOLD: Final = "trainer_backend.run_facts"
EMITTERS: Final[Mapping[str, str]] = {}
"""Modules that construct these facts, with why they tell some apart too."""
PRESENTERS: Final[Mapping[str, str]] = {
    "gradacc_gui.words": "a sentence for each fact, of that fact alone",
}
"""Modules that word facts for people, with what they say; they keep nothing from one fact to the next."""

STATES: Final = frozenset(
    {"starting", "running", "pausing", "paused", "stopping", "stopped", "finished", "failed", "interrupted"}
)
LEAST_STATES: Final = 3
"""An enumeration with so many of them is one of a run's states."""
ENUMS: Final = frozenset({"Enum", "StrEnum", "IntEnum", "Flag", "IntFlag"})
QT: Final = ("PySide6", "pyqtgraph", "shiboken6")


class Module(msgspec.Struct, frozen=True, kw_only=True):
    """One file of source."""

    name: str
    """As it is imported; a package bears its folder's name."""
    is_package: bool
    text: str
    tree: ast.Module


class Found(msgspec.Struct, frozen=True, kw_only=True):
    """What each figure counts, by name; a figure is how many there are."""

    folds_of_facts: list[str]
    state_enums: list[str]
    import_cycles: list[str]
    data_modules_outside_contract: list[str]
    public_class_names_twice: list[str]
    module_stems_twice: list[str]


def read_modules(root: Path, packages: Iterable[str] = PACKAGES) -> dict[str, Module]:
    """Every module of the packages in `root`, by name."""
    found = {}
    for path in sorted(file for package in packages for file in (root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        is_package = parts[-1] == "__init__"
        name = ".".join(parts[:-1] if is_package else parts)
        text = path.read_text("utf-8")
        found[name] = Module(name=name, is_package=is_package, text=text, tree=ast.parse(text))
    return found


# ---------------------------------------------------------------- facts and states


def told_apart(tree: ast.AST, names: frozenset[str]) -> set[str]:
    """Those classes of `names` that a `case` or an `isinstance` asks for."""
    asked: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.MatchClass(cls=kind):
                asked.add(_last_name(kind))
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, kinds]):
                asked |= {_last_name(kind) for kind in ast.walk(kinds)}
    return asked & names


def _last_name(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def folds(modules: Mapping[str, Module], excepted: Iterable[str] = (*EMITTERS, *PRESENTERS)) -> list[str]:
    """Modules that fold facts: the one that is to, and each that tells two or more of them apart."""
    others = set(modules) - set(excepted) - {FOLD}
    return [
        *(name for name in (FOLD,) if name in modules),
        *sorted(name for name in others if len(told_apart(modules[name].tree, FOLDED)) > 1),
    ]


def state_enums(modules: Mapping[str, Module]) -> list[str]:
    """Enumerations, and aliases of Literal, with three or more of a run's states."""
    found = []
    for module in modules.values():
        for node in ast.walk(module.tree):
            match node:
                case ast.ClassDef(name=name, bases=bases) if ENUMS & {_last_name(base) for base in bases}:
                    words = _members(node)
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Subscript() as value):
                    words = _literals(value)
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.Subscript() as value):
                    words = _literals(value)
                case _:
                    continue
            if len(words & STATES) >= LEAST_STATES:
                found.append(f"{module.name}.{name}")
    return sorted(found)


def _members(enum: ast.ClassDef) -> set[str]:
    return {
        target.id.lower()
        for statement in enum.body
        if isinstance(statement, ast.Assign)
        for target in statement.targets
        if isinstance(target, ast.Name)
    }


def _literals(alias: ast.Subscript) -> set[str]:
    if _last_name(alias.value) != "Literal":
        return set()
    return {
        part.value
        for part in ast.walk(alias.slice)
        if isinstance(part, ast.Constant) and isinstance(part.value, str)
    }


# ---------------------------------------------------------------- who imports whom


def imported_by(module: Module, known: Iterable[str]) -> set[str]:
    """Names of modules that it imports, wherever in it the import stands; of `known` ones the very module."""
    among = set(known)
    found: set[str] = set()
    for node in ast.walk(module.tree):
        match node:
            case ast.Import(names=names):
                found |= {alias.name for alias in names}
            case ast.ImportFrom(module=origin, names=names, level=level):
                start = _origin(module, origin, level)
                inner = {f"{start}.{alias.name}" for alias in names}
                found |= inner & among
                if inner - among:
                    found.add(start)
    return found - {module.name}


def _origin(module: Module, origin: str | None, level: int) -> str:
    if not level:
        return origin or ""
    parts = module.name.split(".")
    parts = parts[: len(parts) - level + module.is_package]
    return ".".join([*parts, *([origin] if origin else [])])


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other."""
    reached = {name: set(reach(graph, name)) for name in graph}
    groups = {
        frozenset({name} | {other for other in reached[name] if name in reached.get(other, ())})
        for name in graph
    }
    return sorted(sorted(group) for group in groups if len(group) > 1)


def reach(graph: Mapping[str, set[str]], start: str) -> Iterator[str]:
    """All that is reached from `start`, once each; itself only over a cycle."""
    seen: set[str] = set()
    waiting = list(graph.get(start, ()))
    while waiting:
        name = waiting.pop()
        if name not in seen:
            seen.add(name)
            waiting += graph.get(name, ())
            yield name


def without_qt(graph: Mapping[str, set[str]], modules: Mapping[str, Module]) -> list[str]:
    """Modules of the window's package with something in them that reach no Qt."""
    return [
        name
        for name in graph
        if name.startswith("gradacc_gui")
        and not name.endswith(".__main__")  # starts it, and is nothing that others use
        and not _is_empty(modules[name].tree)
        and not any(_is_of(QT, other) for other in reach(graph, name))
    ]


def _is_empty(tree: ast.Module) -> bool:
    return all(isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) for node in tree.body)


def _is_of(packages: Iterable[str], name: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def kept_from_qt(contracts: Iterable[Mapping[str, Any]]) -> list[str]:
    """Packages and modules that a contract forbids to reach Qt."""
    return [
        name
        for contract in contracts
        if contract["type"] == "forbidden" and "PySide6" in contract["forbidden_modules"]
        for name in contract["source_modules"]
    ]


# ---------------------------------------------------------------- names and lines


def names_twice(named: Iterable[tuple[str, str]]) -> list[str]:
    """Of pairs (name, where): each name that stands in two places, with the places."""
    pairs = sorted(set(named))
    count = Counter(name for name, _ in pairs)
    return [
        f"{name}: {', '.join(where for other, where in pairs if other == name)}"
        for name in sorted(count)
        if count[name] > 1
    ]


def public_classes(modules: Mapping[str, Module]) -> list[tuple[str, str]]:
    """Each class at a module's top level whose name has no underscore, and its module."""
    return [
        (node.name, module.name)
        for module in modules.values()
        for node in module.tree.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    ]


def stems(modules: Mapping[str, Module]) -> list[tuple[str, str]]:
    """Each module's last name, with the whole of it; without packages and `__main__`."""
    return [
        (stem, module.name)
        for module in modules.values()
        if not module.is_package and (stem := module.name.rpartition(".")[2]) != "__main__"
    ]


def code_lines(module: Module) -> int:
    """Lines with code on them: no blanks, no comments, no docstrings."""
    silent = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
    silent |= {tokenize.ENCODING, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type not in silent:
            lines |= set(range(token.start[0], token.end[0] + 1))
    return len(lines - _docstring_lines(module.tree))


def _docstring_lines(tree: ast.Module) -> set[int]:
    """Lines of strings that are statements: docstrings, those below a field too."""
    return {
        line
        for node in ast.walk(tree)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


# ---------------------------------------------------------------- all of it


def find(modules: Mapping[str, Module], contracts: Iterable[Mapping[str, Any]]) -> Found:
    """What each figure counts."""
    graph = {name: imported_by(module, modules) for name, module in modules.items()}
    kept = kept_from_qt(contracts)
    return Found(
        folds_of_facts=folds(modules),
        state_enums=state_enums(modules),
        import_cycles=[" ".join(group) for group in cycles(graph)],
        data_modules_outside_contract=[
            name for name in without_qt(graph, modules) if not _is_of(kept, name)
        ],
        public_class_names_twice=names_twice(public_classes(modules)),
        module_stems_twice=names_twice(stems(modules)),
    )  # fmt: skip


def measure(root: Path = ROOT) -> tuple[Found, dict[str, Module]]:
    """What the checkout in `root` has, and the modules that it was found in."""
    modules = read_modules(root)
    settings = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))
    return find(modules, settings["tool"]["importlinter"]["contracts"]), modules


def main(root: Path = ROOT) -> None:
    """Print what was counted, then the figures."""
    counted, modules = measure(root)
    found = msgspec.structs.asdict(counted)
    for key, names in found.items():
        for name in names:
            print(f"{key}: {name}")
    figures = {key: len(names) for key, names in found.items()}
    figures["code_lines"] = sum(map(code_lines, modules.values()))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
