"""The Python that trains: the user's own, as in an IDE, with its torch and its CUDA.

An interpreter is *probed* (its version, torch, and which of the trainer's few needs it has), what it
lacks is installed into an overlay beside it, never into it, and the trainer's code is copied where an
upgrade of gradacc does not touch live runs. Nothing here waits unless its docstring says so.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from trainer_backend.errors import UsageError
from trainer_backend.private_files import (
    check_private,
    expanded,
    home,
    is_private,
    make_private,
    private_opener,
)
from trainer_backend.regular_files import is_file, is_folder

OLDEST_PYTHON: Final = (3, 11)
OLDEST_TORCH: Final = (2, 13)
"""As pyproject.toml declares: the oldest that the engine's tests were run on."""
PROBE_TIMEOUT_S: Final = 60.0
INSTALL_TIMEOUT_S: Final = 600.0
NO_CONSOLE: Final[int] = getattr(subprocess, "CREATE_NO_WINDOW", 0)
"""For `subprocess`: on Windows, no console window flashes up; elsewhere nothing."""


class Need(msgspec.Struct, frozen=True):
    """A package that the trainer imports, beside torch."""

    module: str
    package: str
    """Its name for pip."""
    oldest: tuple[int, ...]
    pinned: str
    """The version that is installed where it is missing: the one that the tests were run with."""

    @property
    def requirement(self) -> str:
        """What pip is asked for."""
        return f"{self.package}=={self.pinned}"


NEEDS: Final = (
    Need("msgspec", "msgspec", (0, 19), "0.23.0"),
    Need("safetensors", "safetensors", (0, 4, 5), "0.8.0"),
    Need("psutil", "psutil", (6,), "7.2.2"),
    Need("pynvml", "nvidia-ml-py", (12, 560), "13.615.71"),
    Need("tomlkit", "tomlkit", (0, 13), "0.15.2"),
    # safetensors writes tensors through it. Any that torch works with will do: a newer one laid over an
    # interpreter's own would break what is compiled against that.
    Need("numpy", "numpy", (1, 21), "2.4.6"),
)
"""The trainer's part of pyproject.toml's dependencies, at the versions of constraints.txt."""


class InterpreterError(UsageError):
    """An interpreter cannot train; the sentence says why and what to do."""


class Interpreter(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe found. Nothing of it is written anywhere."""

    executable: str
    version: tuple[int, int, int]
    implementation: str
    abi: str
    """Of compiled packages: implementation, version, platform; the overlay's folder is named so."""
    prefix: str
    torch_version: str = ""
    """Empty when it has no torch."""
    cuda_version: str = ""
    """Of torch's build; empty for a build without CUDA."""
    packages: dict[str, str] = {}
    """Those of `NEEDS` that it has: package -> version."""
    modules: dict[str, bool] = {}
    """Other modules that were asked for, and whether they are there."""

    @property
    def version_text(self) -> str:
        """Such as 3.11.4."""
        return ".".join(map(str, self.version))

    def missing(self) -> tuple[Need, ...]:
        """The trainer's needs that the interpreter itself lacks or has too old."""
        return tuple(
            need for need in NEEDS if _version_tuple(self.packages.get(need.package, "")) < need.oldest
        )

    def check(self) -> Interpreter:
        """Itself. Raises InterpreterError when it or its torch is too old, or it has no torch."""
        if self.version < OLDEST_PYTHON:
            message = (
                f"{self.executable} is Python {self.version_text}; the trainer needs 3.11 or newer."
                " Choose another interpreter."
            )
            raise InterpreterError(message)
        if not self.torch_version:
            message = (
                f"{self.executable} has no torch. Install it there"
                f" ({self.executable} -m pip install torch), or choose another interpreter."
            )
            raise InterpreterError(message)
        found = _version_tuple(self.torch_version)
        if found and found < OLDEST_TORCH:
            oldest = ".".join(map(str, OLDEST_TORCH))
            message = (
                f"{self.executable} has torch {self.torch_version}; the trainer needs {oldest} or newer."
                f" Update it there ({self.executable} -m pip install --upgrade torch), or choose another"
                " interpreter."
            )
            raise InterpreterError(message)
        return self


# Runs in the user's interpreter, which may be any Python 3 (or none): no syntax newer than 3.6.
# torch is not imported, for that takes seconds: its version file says what it is. Wide excepts: a stranger's
# environment may raise anything here, and what cannot be found out is told as unknown.
_PROBE = r"""
import json, os, platform, site, sys, sysconfig
wanted, extra = json.loads(sys.argv[1])
if sys.prefix == sys.base_prefix and not os.environ.get("PYTHONNOUSERSITE"):
    try: site.addsitedir(site.getusersitepackages())
    except Exception: pass
from importlib import util
def there(name):
    try: return util.find_spec(name) is not None
    except Exception: return False
def version(name):
    try:
        from importlib import metadata
        return metadata.version(name)
    except Exception: return ""
torch_version = cuda = ""
try: spec = util.find_spec("torch")
except Exception: spec = None
if spec is not None and spec.origin:
    torch_version = version("torch") or "unknown"
    names = {}
    try:
        with open(os.path.join(os.path.dirname(spec.origin), "version.py")) as file: exec(file.read(), names)
        torch_version = str(names.get("__version__") or torch_version)
        cuda = names.get("cuda") or ""
    except Exception: pass
print("gradacc-probe:" + json.dumps({
    "executable": sys.executable, "version": list(sys.version_info[:3]),
    "implementation": sys.implementation.name, "prefix": sys.prefix,
    "abi": sysconfig.get_config_var("SOABI")
           or "%s-%s" % (sys.implementation.cache_tag, sysconfig.get_platform()),
    "torch_version": torch_version, "cuda_version": cuda,
    "packages": {p: version(p) or "0" for m, p in wanted if there(m)},
    "modules": {m: there(m) for m in extra}}))
"""


def probe(
    python: str | Path, *, modules: Iterable[str] = (), timeout_s: float = PROBE_TIMEOUT_S
) -> Interpreter:
    """Ask an interpreter what it is and has. Waits for it (about 0.1 s): not for the GUI thread.

    `modules`: names whose presence is asked for too (a kind's optional libraries).
    Raises InterpreterError when it is no working Python; `Interpreter.check` judges the rest.
    """
    asked = json.dumps([[[need.module, need.package] for need in NEEDS], list(modules)])
    command = [*as_command(python), "-I", "-c", _PROBE, asked]
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=timeout_s,
            check=False,
            env=cleaned_environment(),
            creationflags=NO_CONSOLE,
        )
    except OSError as error:
        message = f"{python} cannot be started: {error.strerror}. Choose a Python interpreter."
        raise InterpreterError(message) from error
    except subprocess.TimeoutExpired as error:
        message = f"{python} did not answer within {timeout_s:g} s. Choose another interpreter."
        raise InterpreterError(message) from error
    return _read_probe(str(python), done)


def _read_probe(python: str, done: subprocess.CompletedProcess[bytes]) -> Interpreter:
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        # Start-up files of the interpreter may print too; only our own line counts.
        if line.startswith("gradacc-probe:"):
            try:
                return msgspec.json.decode(line.removeprefix("gradacc-probe:"), type=Interpreter)
            except msgspec.DecodeError:
                break
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    # The last line says what went wrong, unless it is the end of a broken paragraph.
    why = f" It said: {said[0 if said[-1].startswith(' ') else -1].strip()}" if said else ""
    how = f"exit code {done.returncode}" if done.returncode else "it ended without an answer"
    why += "" if why.endswith((".", "!", "?")) or not why else "."
    message = f"{python} is not a working Python 3 ({how}).{why} Choose another one."
    raise InterpreterError(message)


def _version_tuple(text: str) -> tuple[int, ...]:
    """Leading numbers of a version: (0, 19, 0) of "0.19.0rc1"; () of an empty one."""
    found = re.match(r"\d+(\.\d+)*", text)
    return tuple(map(int, found[0].split("."))) if found else ()


def as_command(python: str | Path) -> list[str]:
    """An interpreter as the beginning of a command; a virtual environment's folder is taken too."""
    path = expanded(python)
    if is_folder(path):
        for inside in ("bin/python", "Scripts/python.exe", "python.exe", "bin/python3"):
            if (path / inside).exists():
                return [str((path / inside).absolute())]
    # Not resolved: a virtual environment is found by the name of its link.
    return [str(path.absolute()) if is_file(path) else str(python)]


def candidates(folder: Path | None = None) -> list[Path]:
    """Interpreters a person may mean, best first: their project's, the active one, our own, PATH's."""
    places: list[Path] = []
    if folder is not None:
        places += [folder / name for name in (".venv", "venv", "env")]
    places += [Path(os.environ[name]) for name in ("VIRTUAL_ENV", "CONDA_PREFIX") if os.environ.get(name)]
    found = [Path(as_command(place)[0]) for place in places if is_folder(place)]
    found.append(Path(sys.executable))
    found += [Path(path) for name in ("python3", "python") if (path := shutil.which(name))]
    return list(dict.fromkeys(path for path in found if path.is_file()))


# ---------------------------------------------------------------------------------- overlay


class Install(msgspec.Struct, frozen=True):
    """One package to put into the overlay; ask the person before `run`."""

    need: Need
    command: tuple[str, ...]
    beside: Path
    """Where pip writes; renamed to `target` when it is whole."""
    target: Path

    def run(self, *, timeout_s: float = INSTALL_TIMEOUT_S) -> None:
        """Install it. Waits for pip: not for the GUI thread. Raises InterpreterError with pip's last line."""
        make_private(self.target.parent)
        try:
            done = subprocess.run(
                self.command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout_s,
                check=False,
                env=cleaned_environment(),
                creationflags=NO_CONSOLE,
            )
            if done.returncode:
                raise InterpreterError(self._why(done.stderr.decode("utf-8", "replace")))
            if not self.target.exists():
                self.beside.replace(self.target)
        except OSError as error:
            raise InterpreterError(self._why(str(error))) from error
        except subprocess.TimeoutExpired as error:
            raise InterpreterError(self._why(f"no answer within {timeout_s:g} s")) from error
        finally:
            shutil.rmtree(self.beside, ignore_errors=True)

    def _why(self, said: str) -> str:
        lines = [line for line in said.strip().splitlines() if line.strip()] or ["it failed without a word"]
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        return (
            f"pip could not install {self.need.package}: {errors[-1].removeprefix('ERROR: ')}."
            " Check the network, or install it into the interpreter yourself."
        )


def overlay_folder(interpreter: Interpreter) -> Path:
    """Where packages that interpreters of this ABI lack are kept, one folder each."""
    return home() / "overlay" / re.sub(r"[^\w.-]+", "-", interpreter.abi)


def overlay_target(interpreter: Interpreter, need: Need) -> Path:
    """Where one of them lies; its own folder, so that it hides nothing that an interpreter has."""
    return overlay_folder(interpreter) / f"{need.package}-{need.pinned}"


def installs(interpreter: Interpreter) -> list[Install]:
    """What must be installed before this interpreter can train; empty when nothing is missing.

    Raises InterpreterError when it is too old, has no torch, or no pip is at hand to install with.
    """
    interpreter.check()
    wanted = [need for need in interpreter.missing() if not overlay_target(interpreter, need).is_dir()]
    if not wanted:
        return []
    pip = _pip_for(interpreter, wanted)
    found = []
    for need in wanted:
        target = overlay_target(interpreter, need)
        beside = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
        options = ("install", "--no-deps", "--target", str(beside), "--disable-pip-version-check", "--quiet")
        found.append(Install(need, (*pip, *options, need.requirement), beside, target))
    return found


def _pip_for(interpreter: Interpreter, wanted: Iterable[Need]) -> tuple[str, ...]:
    """Our own pip told to work for the other interpreter (a bare one need not have pip), else its own."""
    if _has_pip(sys.executable):
        return (sys.executable, "-m", "pip", "--python", interpreter.executable)
    if _has_pip(interpreter.executable):
        return (interpreter.executable, "-m", "pip")
    packages = " ".join(f'"{need.requirement}"' for need in wanted)
    message = (
        f"Neither {sys.executable} nor {interpreter.executable} has pip to install {packages} with."
        f" Run {sys.executable} -m ensurepip first."
    )
    raise InterpreterError(message)


def _has_pip(python: str) -> bool:
    probed = probe(python, modules=("pip",))
    return probed.modules.get("pip", False)


# --------------------------------------------------------------------- trainer copy, environment


def trainer_copy(source: Path | None = None) -> Path:
    """The folder to put on PYTHONPATH: a copy of trainer_backend, named by its content.

    An upgrade makes another folder, so a live run and its loader workers keep theirs. Raises
    InterpreterError when it cannot be written.
    """
    package = source or Path(__file__).resolve().parents[2] / "trainer_backend"
    files = sorted(
        path
        for path in package.rglob("*")
        if path.is_file() and path.suffix != ".pyc" and "__pycache__" not in path.parts
    )
    digest = hashlib.sha256()
    contents = []
    for path in files:
        name = path.relative_to(package).as_posix()
        content = path.read_bytes()
        contents.append((name, content))
        digest.update(f"{name}\0{len(content)}\0".encode() + content)
    target = home() / "trainer" / digest.hexdigest()[:16]
    try:
        is_closed = target.exists() and is_private(target)  # else what was compiled there may be anybody's
        if target.exists():
            check_private(target)
        if not is_closed or not _is_copy(target, contents):
            _write_copy(target, contents)
    except OSError as error:
        message = f"The trainer cannot be copied to {target}: {error.strerror}. Set GRADACC_HOME elsewhere."
        raise InterpreterError(message) from error
    return target


def _is_copy(target: Path, contents: Sequence[tuple[str, bytes]]) -> bool:
    """Whether exactly these files lie there, byte for byte; what Python compiled from them may lie beside.

    Its name says what was copied there once. What lies there now is what would run.
    """
    wanted = {f"trainer_backend/{name}": content for name, content in contents}
    try:
        there = {path.relative_to(target).as_posix(): path for path in target.rglob("*") if not path.is_dir()}
        sources = {name: path for name, path in there.items() if "/__pycache__/" not in name}
        return sources.keys() == wanted.keys() and all(
            not path.is_symlink() and path.read_bytes() == wanted[name] for name, path in sources.items()
        )
    except OSError:
        return False


def _write_copy(target: Path, contents: Sequence[tuple[str, bytes]]) -> None:
    """Put the copy in its place. Raises OSError."""
    beside = target.with_name(f".{target.name}.{uuid.uuid4().hex[:8]}")
    aside = beside.with_name(f"{beside.name}.aside")
    try:
        for name, content in contents:
            path = beside / "trainer_backend" / name
            make_private(path.parent)
            with open(path, "wb", opener=private_opener) as file:
                file.write(content)
        try:
            if target.exists():
                target.rename(aside)
            beside.replace(target)
        except OSError:
            if not _is_copy(target, contents):  # else another window was faster
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        shutil.rmtree(aside, ignore_errors=True)


_REMOVED: Final = (
    "PYTHONHOME",
    "PYTHONPATH",
    "PYTHONSTARTUP",
    "PYTHONEXECUTABLE",
    "PYTHONPLATLIBDIR",
    "PYTHONINSPECT",
    "PYTHONIOENCODING",
    "VIRTUAL_ENV",
    "__PYVENV_LAUNCHER__",
)


def cleaned_environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without what would bend another interpreter, or Qt's settings of this process."""
    known = os.environ if base is None else base
    return {
        name: value for name, value in known.items() if name not in _REMOVED and not name.startswith("QT_")
    }


def trainer_environment(interpreter: Interpreter) -> dict[str, str]:
    """The environment a trainer is started in: its code and the overlay's packages on PYTHONPATH.

    Raises InterpreterError and ForeignFolderError when these cannot be trusted to be ours.
    """
    folders = [trainer_copy(), *(overlay_target(interpreter, need) for need in interpreter.missing())]
    for folder in folders[1:]:
        check_private(folder)
    environment = cleaned_environment()
    environment |= {
        "PYTHONPATH": os.pathsep.join(map(str, folders)),
        "PYTHONUTF8": "1",
        "PYTHONUNBUFFERED": "1",
        "PYTHONFAULTHANDLER": "1",
        "GRADACC_HOME": str(home()),
    }
    if sys.platform == "win32" and (Path(interpreter.prefix) / "conda-meta").is_dir():
        # A conda interpreter that is not activated finds its DLLs only through PATH.
        library = Path(interpreter.prefix) / "Library" / "bin"
        environment["PATH"] = os.pathsep.join([str(library), environment.get("PATH", "")])
    return environment
