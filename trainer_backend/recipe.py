"""Recipes: TOML files that hold a `RunConfig`, opened, edited and saved with their comments kept.

A run directory's recipe.toml has one table more, `[source]`: the folder that relative paths and the
entry resolve in, and a hash of the entry's source, so that a change is said at Resume.
"""

from __future__ import annotations

import errno
import hashlib
import os
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import tomlkit
import tomlkit.exceptions
from tomlkit.toml_document import TOMLDocument

from trainer_backend.config import RunConfig
from trainer_backend.config_check import Problem, alternatives, check
from trainer_backend.errors import UsageError
from trainer_backend.regular_files import LARGEST_TEXT_BYTES, read_regular


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """Where a recipe came from."""

    folder: str
    entry_sha256: str = ""
    recipe: str = ""
    """The recipe file's own path, for people."""


class Recipe(msgspec.Struct, frozen=True):
    """A recipe that was read: its text with comments, what it says, and where its paths start."""

    document: TOMLDocument
    config: RunConfig
    source: Source

    @property
    def text(self) -> str:
        """As it is written to a file."""
        return tomlkit.dumps(self.document)

    @property
    def folder(self) -> Path:
        """What relative paths and the entry resolve in."""
        return Path(self.source.folder)


class RecipeError(UsageError):
    """A recipe is refused; `problems` has one sentence a fault, and so has the message, one a line."""

    def __init__(self, where: str, problems: Iterable[Problem], settings: Sequence[str] = ()) -> None:
        self.problems = tuple(problems)
        places = (_place(problem, settings) or where for problem in self.problems)
        super().__init__(
            "\n".join(
                f"{place}: {problem.message}" for place, problem in zip(places, self.problems, strict=True)
            )
        )


def _place(problem: Problem, settings: Sequence[str]) -> str:
    """The KEY=VALUE on the command line that a problem is about; empty when it is the file's own."""
    for text in settings:
        key = text.partition("=")[0].strip()
        if f"{problem.path}.".startswith(f"{key}.") or key.startswith(f"{problem.path}."):
            return f"--set {text}"
    return ""


def read_document(path: Path) -> TOMLDocument:
    """A recipe's TOML, with comments. Raises UsageError with a sentence."""
    try:
        text = read_regular(path, LARGEST_TEXT_BYTES, follow=True).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        message = (
            f"{path} is not text in UTF-8 (byte {error.start}); so it is not a recipe. Choose a .toml file."
        )
        raise UsageError(message) from error
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        why = getattr(error, "strerror", None) or str(error)
        if isinstance(error, OSError) and error.errno == errno.EFBIG:
            why = "it is larger than 1 MiB, so it is not a recipe"
        message = f"The recipe {path} cannot be read: {why}. Check the path."
        raise UsageError(message) from error
    return parse_document(text, str(path))


def parse_document(text: str, where: str = "recipe") -> TOMLDocument:
    """TOML text with comments kept. Raises UsageError with line and column."""
    try:
        # tomllib is the stricter reader and has the better messages; tomlkit keeps the comments.
        tomllib.loads(text)
        return tomlkit.parse(text)
    except RecursionError as error:
        message = f"{where} is not a recipe: its values are nested too deeply. Give each key a plain value."
        raise UsageError(message) from error
    except (ValueError, tomlkit.exceptions.TOMLKitError) as error:  # ValueError: over 4,300 digits, too
        message = f"{where} is not valid TOML: {_short(error)}. Correct that line and open it again."
        raise UsageError(message) from error


def _short(error: Exception) -> str:
    """Why a text is no TOML, without the advice for programmers that Python gives on long numbers."""
    return "a number has too many digits" if "integer string conversion" in str(error) else str(error)


def recipe_from_document(
    document: TOMLDocument, *, folder: Path, where: str = "recipe", settings: Sequence[str] = ()
) -> Recipe:
    """Check a document, of which `settings` (KEY=VALUE) were set. Raises RecipeError with every problem."""
    data: dict[str, Any] = document.unwrap()
    said = data.pop("source", None)
    source = Source(folder=str(folder))
    if isinstance(said, dict) and isinstance(said.get("folder"), str):
        source = msgspec.convert(said, Source, strict=False)
    checked = check(data)
    if not isinstance(checked, RunConfig):
        raise RecipeError(where, checked, settings)
    return Recipe(document, checked, source)


def load_recipe(path: Path) -> Recipe:
    """Read and check a recipe file. Raises UsageError."""
    document = read_document(path)
    return recipe_from_document(document, folder=path.absolute().parent, where=str(path))


def with_settings(recipe: Recipe, settings: Sequence[str], where: str) -> Recipe:
    """The recipe with every KEY=VALUE set, checked again. Raises UsageError, RecipeError."""
    if not settings:
        return recipe
    document = _copy(recipe.document)
    for text in settings:
        set_value(document, *parse_setting(text))
    return recipe_from_document(document, folder=recipe.folder, where=where, settings=settings)


def set_value(document: TOMLDocument, key: str, value: Any) -> None:  # noqa: ANN401 - any TOML value
    """Set `a.b` (or take it away with None), keeping all else as it stands. Raises UsageError."""
    *tables, name = key.split(".")
    if not tables or not all((*tables, name)):
        message = f"{key!r} is not a recipe key; keys look like accumulation.micro_batch_size."
        raise UsageError(message)
    table: Any = document
    for part in tables:
        if part not in table:
            if value is None:
                return
            table[part] = tomlkit.table()
        table = table[part]
        if not isinstance(table, dict):
            message = f"{key!r} is not a recipe key: {part} is a value, not a table."
            raise UsageError(message)
    if value is None:
        table.pop(name, None)
    elif name in table and table[name] == value and type(table[name].unwrap()) is type(value):
        return
    else:
        old = table.get(name)
        item = tomlkit.item(value)
        if old is not None and hasattr(old, "trivia"):  # the comment at the line's end stays
            item.trivia.comment_ws = old.trivia.comment_ws
            item.trivia.comment = old.trivia.comment
        table[name] = item


def parse_setting(text: str) -> tuple[str, Any]:
    """`a.b=c` from a command line: the value is TOML, or a bare word as text. Raises UsageError."""
    key, equals, word = text.partition("=")
    if not equals:
        message = f"--set {text}: give it as KEY=VALUE, such as accumulation.micro_batch_size=4."
        raise UsageError(message)
    try:
        value = tomllib.loads(f"value = {word}")["value"]
    except tomllib.TOMLDecodeError:
        value = word
    return key.strip(), value


def apply_settings(document: TOMLDocument, settings: Sequence[str]) -> None:
    """Put KEY=VALUE pairs into a recipe; KEY= takes a key away. Raises UsageError.

    A key takes the place of what the recipe says instead of it (`run.max_samples` that of `run.epochs`);
    two such keys in `settings` stay both, and are refused when the recipe is checked.
    """
    asked = [(*parse_setting(text), text.endswith("=")) for text in settings]
    for key, value, ends in asked:
        gone = ends and value == ""
        set_value(document, key, None if gone else value)
        for other in () if gone else alternatives(key):
            if all(other != also for also, _, _ in asked):
                set_value(document, other, None)


def save_recipe(document: TOMLDocument, path: Path) -> None:
    """Write a recipe beside and rename it, so that a full disk never costs the old one. Raises UsageError."""
    beside = path.with_name(f".{path.name}.part")
    try:
        beside.write_text(tomlkit.dumps(document), encoding="utf-8", newline="\n")
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        message = f"The recipe cannot be saved as {path}: {error.strerror}. Choose another folder."
        raise UsageError(message) from error


def recipe_for_run(recipe: Recipe, *, recipe_path: str = "") -> Recipe:
    """The recipe as a run's directory has it: what was asked, and where it came from. Rerunnable.

    Nothing is checked again: what was asked is the same.
    """
    document = _copy(recipe.document)
    source = Source(
        folder=recipe.source.folder,
        recipe=recipe_path or recipe.source.recipe,
        entry_sha256=entry_sha256(recipe),
    )
    table = tomlkit.table()
    table.update(msgspec.structs.asdict(source))
    document["source"] = table
    return Recipe(document, recipe.config, source)


def _copy(document: TOMLDocument) -> TOMLDocument:
    return tomlkit.parse(tomlkit.dumps(document))


def entry_sha256(recipe: Recipe) -> str:
    """Hash of the file that the entry's module lies in; empty for built-in kinds or when not found."""
    entry = getattr(recipe.config.task, "entry", "")
    if not entry:
        return ""
    stem = recipe.folder.joinpath(*entry.partition(":")[0].split("."))
    for path in (stem.with_suffix(".py"), stem / "__init__.py"):
        if path.is_file():
            return hashlib.sha256(path.read_bytes()).hexdigest()
    return ""


def default_name(path: Path | None) -> str:
    """What a run is called when the recipe does not say."""
    return os.path.splitext(path.name)[0] if path is not None else "run"  # noqa: PTH122 - "a.b.toml" keeps a.b
