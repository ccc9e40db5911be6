"""The interpreter that trains is asked, not guessed; what it lacks lies beside it, never in it."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sys
import tomllib
import venv
from pathlib import Path

import pytest
from msgspec.structs import replace

from gradacc_gui.session import interpreter as module
from gradacc_gui.session.interpreter import (
    NEEDS,
    Interpreter,
    InterpreterError,
    as_command,
    candidates,
    cleaned_environment,
    installs,
    overlay_target,
    probe,
    trainer_copy,
    trainer_environment,
)
from tests.support.trainers import ROOT
from trainer_backend.private_files import make_private


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with nothing in it."""
    folder = tmp_path_factory.mktemp("interpreters") / "bare"
    venv.create(folder, with_pip=False, symlinks=os.name != "nt")
    return folder


def test_our_own_interpreter_has_all_that_is_needed() -> None:
    """Found without importing torch."""
    found = probe(sys.executable, modules=("torch", "no_such_module"))

    assert found.version == sys.version_info[:3]
    assert found.torch_version.startswith("2.")
    assert found.missing() == ()
    assert found.modules == {"torch": True, "no_such_module": False}
    assert found.check() is found
    assert installs(found) == []


def test_a_virtual_environment_is_named_by_its_folder(bare: Path) -> None:
    """Or by its interpreter; both are the same."""
    found = probe(bare)

    assert Path(found.prefix).resolve() == bare.resolve()
    assert as_command(found.executable) == as_command(bare)
    assert [need.package for need in found.missing()] == [need.package for need in NEEDS]


def test_an_interpreter_without_torch_is_refused_with_the_remedy(bare: Path) -> None:
    """The sentence has the command that would mend it."""
    with pytest.raises(InterpreterError, match=r"has no torch\. Install it there .*-m pip install torch"):
        probe(bare).check()


def test_a_python_that_is_too_old_is_refused() -> None:
    """Before anything is installed for it."""
    old = Interpreter(
        executable="/usr/bin/python3.9",
        version=(3, 9, 18),
        implementation="cpython",
        abi="x",
        prefix="/usr",
        torch_version="2.0",
    )
    with pytest.raises(InterpreterError, match=r"python3\.9 is Python 3\.9\.18; .* 3\.11 or newer"):
        installs(old)


@pytest.mark.parametrize("version", ["2.12.1+cu130", "2.6.0", "1.13.1"])
def test_a_torch_that_is_too_old_is_refused_with_the_remedy(version: str) -> None:
    """Its version, the oldest that will do, and the command that mends it."""
    old = replace(probe(sys.executable), torch_version=version)
    told = rf"has torch {re.escape(version)}; .* 2\.13 or newer\..* pip install --upgrade torch"
    with pytest.raises(InterpreterError, match=told):
        old.check()


@pytest.mark.parametrize("version", ["2.13.0+cpu", "2.13", "2.14.0a0+git123", "3.0", "unknown"])
def test_a_torch_that_is_new_enough_or_does_not_tell_is_taken(version: str) -> None:
    """A build of one's own may have no number: the trainer itself will see."""
    assert replace(probe(sys.executable), torch_version=version).check().torch_version == version


def test_the_oldest_torch_is_the_one_that_is_declared() -> None:
    """In one place for pip, in another for interpreters that pip did not fill."""
    with (Path(__file__).parents[4] / "pyproject.toml").open("rb") as file:
        declared = tomllib.load(file)["project"]["dependencies"]
    assert f"torch>={'.'.join(map(str, module.OLDEST_TORCH))}" in declared


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("#!/bin/sh\nexit 7\n", r"not a working Python 3 \(exit code 7\)"),
        ("#!/bin/sh\n", r"not a working Python 3 \(it ended without an answer\)\. Choose"),
        (
            "#!/bin/sh\necho 'pyenv: no such command' >&2\necho '      and a broken tail.' >&2\nexit 127\n",
            r"\(exit code 127\)\. It said: pyenv: no such command\. Choose",
        ),
        ("#!/bin/sh\necho 'I am a shell' >&2\nexit 1\n", "It said: I am a shell"),
        ("#!/bin/sh\necho 'gradacc-probe:{\"version\": 4}'\n", "not a working Python 3"),
        ("#!/bin/sh\nsleep 30\n", "did not answer within 0.3 s"),
        ("#!/no/such/interpreter\n", "cannot be started"),
    ],
)
def test_what_is_no_python_is_a_sentence(tmp_path: Path, content: str, told: str) -> None:
    """Whatever the file is or does."""
    program = tmp_path / "python"
    program.write_text(content)
    program.chmod(0o755)

    with pytest.raises(InterpreterError, match=told):
        probe(program, timeout_s=0.3 if "sleep" in content else 30)


def test_a_path_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    """As it was given."""
    with pytest.raises(InterpreterError, match="nowhere cannot be started: No such file"):
        probe(tmp_path / "nowhere")


def test_an_interpreter_that_talks_at_its_start_is_understood(bare: Path, tmp_path: Path) -> None:
    """Start-up files may print before our program does."""
    chatty = tmp_path / "chatty"
    venv.create(chatty, with_pip=False, symlinks=os.name != "nt")
    (packages,) = chatty.rglob("site-packages")
    (packages / "sitecustomize.py").write_text("print('welcome')")

    assert probe(chatty).version == sys.version_info[:3]


def test_an_old_package_counts_as_missing() -> None:
    """So that the trainer does not meet it."""
    found = probe(sys.executable)
    old = replace(found, packages=found.packages | {"msgspec": "0.9.1", "psutil": "weird"})

    assert [need.package for need in old.missing()] == ["msgspec", "psutil"]


def test_only_what_is_missing_is_installed_and_each_in_its_own_folder() -> None:
    """An overlay hides nothing that an interpreter has, and nothing is written into the interpreter."""
    found = probe(sys.executable)
    lacking = replace(found, packages={k: v for k, v in found.packages.items() if k != "tomlkit"})

    (step,) = installs(lacking)

    assert step.need.package == "tomlkit"
    assert step.target == overlay_target(lacking, step.need)
    assert "--no-deps" in step.command
    assert step.command[step.command.index("--target") + 1] == str(step.beside)
    assert not step.target.exists()
    make_private(step.target)
    assert installs(lacking) == []
    assert trainer_environment(lacking)["PYTHONPATH"].split(os.pathsep)[1:] == [str(step.target)]


def test_an_installation_that_fails_is_a_sentence_and_leaves_nothing() -> None:
    """pip's own last word, and no half of a package."""
    found = probe(sys.executable)
    (step,) = installs(replace(found, packages=found.packages | {"tomlkit": ""}))
    code = "import sys; print('ERROR: No matching distribution found', file=sys.stderr); sys.exit(1)"

    with pytest.raises(InterpreterError, match="could not install tomlkit: No matching distribution found"):
        replace(step, command=(sys.executable, "-c", code)).run()
    assert list(step.target.parent.iterdir()) == []


def test_the_needs_are_those_of_the_project() -> None:
    """pyproject.toml and the probe ask for the same versions."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    for need in NEEDS:
        if need.package != "numpy":  # an interpreter's own may be older than the one the window wants
            oldest = ".".join(map(str, need.oldest))
            assert f"{need.package}>={oldest}" in project["dependencies"]


def test_what_is_missing_is_installed_at_the_locked_version() -> None:
    """The one that the tests were run with, not whatever is newest that day."""
    locked = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    assert [need.requirement for need in NEEDS if need.requirement not in locked] == []


def test_the_trainer_is_copied_once_and_an_upgrade_leaves_the_old_copy(tmp_path: Path) -> None:
    """A live run's workers import from theirs to the end."""
    source = tmp_path / "trainer_backend"
    shutil.copytree(ROOT / "trainer_backend", source)
    first = trainer_copy(source)
    stamp = (first / "trainer_backend" / "__init__.py").stat().st_mtime_ns
    assert trainer_copy(source) == first
    assert (first / "trainer_backend" / "__init__.py").stat().st_mtime_ns == stamp

    (source / "new_module.py").write_text("")
    second = trainer_copy(source)

    assert second != first
    assert (first / "trainer_backend" / "__init__.py").is_file()
    assert (second / "trainer_backend" / "new_module.py").is_file()
    assert not list(second.rglob("*.pyc"))
    assert not [entry for entry in first.parent.iterdir() if entry.name.startswith(".")]


@pytest.mark.parametrize("how", ["added", "changed", "linked", "open"])
def test_a_copy_that_is_not_what_was_copied_is_made_anew(how: str, tmp_path: Path) -> None:
    """Its folder is on PYTHONPATH: another user's sitecustomize.py ran in a trainer."""
    copy = trainer_copy()
    init = copy / "trainer_backend" / "__init__.py"
    content = init.read_bytes()
    match how:
        case "added":
            (copy / "sitecustomize.py").write_text("raise SystemExit(7)")
        case "changed":
            init.write_bytes(content[::-1])
        case "linked":
            init.rename(tmp_path / "code.py")
            init.symlink_to(tmp_path / "code.py")
        case _:  # what was compiled there may be anybody's
            copy.chmod(0o777)
            (copy / "trainer_backend" / "__pycache__").mkdir()
            (copy / "trainer_backend" / "__pycache__" / "errors.pyc").write_bytes(b"code")

    assert trainer_copy() == copy
    assert [path.name for path in copy.iterdir()] == ["trainer_backend"]
    assert not (copy / "trainer_backend" / "__pycache__").exists()
    assert not init.is_symlink()
    assert init.read_bytes() == content
    assert stat.S_IMODE(copy.stat().st_mode) == 0o700
    assert not [entry for entry in copy.parent.iterdir() if entry.name.startswith(".")]


def test_what_python_compiled_in_a_copy_is_left_to_live_trainers() -> None:
    """Their copy is not made anew under them."""
    copy = trainer_copy()
    compiled = copy / "trainer_backend" / "__pycache__" / "errors.pyc"
    compiled.parent.mkdir()
    compiled.write_bytes(b"code")
    assert trainer_copy() == copy
    assert compiled.exists()


def test_a_copy_runs_where_gradacc_is_not_installed(bare: Path) -> None:
    """It finds itself on PYTHONPATH and nothing of the checkout."""
    code = "import trainer_backend, sys; print(trainer_backend.__file__)"
    copy = trainer_copy()
    environment = cleaned_environment() | {"PYTHONPATH": str(copy)}

    done = subprocess.run(
        [*as_command(bare), "-P", "-c", code], env=environment, capture_output=True, text=True, check=True
    )

    assert done.stdout.startswith(str(copy))


def test_a_home_that_cannot_be_written_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """GRADACC_HOME is a file, say."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GRADACC_HOME", str(tmp_path / "file"))

    with pytest.raises(InterpreterError, match=r"trainer cannot be copied .* Set GRADACC_HOME"):
        trainer_copy()


def test_a_project_s_own_environment_is_offered_first(
    bare: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then the active one, then our own; each once."""
    monkeypatch.setenv("VIRTUAL_ENV", str(bare))
    project = tmp_path / "project"
    venv.create(project / ".venv", with_pip=False, symlinks=os.name != "nt")

    found = candidates(project)

    assert found[0] == Path(as_command(project / ".venv")[0])
    assert found[1] == Path(as_command(bare)[0])
    assert Path(sys.executable) in found
    assert len(found) == len(set(found))


def test_without_any_pip_the_person_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to run."""
    monkeypatch.setattr(module, "_has_pip", lambda _: False)
    found = probe(sys.executable)

    with pytest.raises(InterpreterError, match=r"has pip to install .*tomlkit.*-m ensurepip"):
        installs(replace(found, packages=found.packages | {"tomlkit": ""}))
