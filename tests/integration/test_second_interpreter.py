"""Another virtual environment, with torch and none of the project's packages, trains the demo."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
import venv
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from gradacc_gui.session.interpreter import NEEDS, overlay_target, probe
from tests.support.trainers import ROOT, events
from trainer_backend.protocol import RunFinished, RunStarted
from trainer_backend.run_directory import all_runs


def closure(name: str) -> set[str]:
    """A distribution and all that it requires here."""
    found: set[str] = set()
    waiting = [name]
    while waiting:
        wanted = waiting.pop()
        if wanted.lower() in found:
            continue
        found.add(wanted.lower())
        try:
            required = metadata.requires(wanted) or []
        except metadata.PackageNotFoundError:  # a requirement that this build of torch does without
            continue
        for line in required:
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                waiting.append(requirement.name)
    return found


def link_packages(names: set[str], folder: Path) -> None:
    """Let a folder show these distributions and no others."""
    for name in names:
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        for top in {
            file.parts[0] for file in distribution.files or [] if file.parts[0] not in ("..", "__pycache__")
        }:
            source = Path(str(distribution.locate_file(top)))
            if source.exists() and not (folder / top).exists():
                (folder / top).symlink_to(source, target_is_directory=source.is_dir())


def pack_wheel(name: str, folder: Path) -> None:
    """A wheel of an installed distribution, so that pip needs no network."""
    distribution = metadata.distribution(name)
    wheel = distribution.read_text("WHEEL") or ""
    tag = next(line.removeprefix("Tag: ") for line in wheel.splitlines() if line.startswith("Tag: "))
    files = [
        file
        for file in distribution.files or []
        if file.parts[0] != ".."
        and file.suffix != ".pyc"
        and file.name not in ("RECORD", "INSTALLER", "REQUESTED")
    ]
    info = next(file.parts[0] for file in files if file.parts[0].endswith(".dist-info"))
    record = []
    path = folder / f"{info.removesuffix('.dist-info')}-{tag}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in files:
            content = file.read_binary()
            digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            record.append(f"{file.as_posix()},sha256={digest},{len(content)}")
            archive.writestr(file.as_posix(), content)
        archive.writestr(f"{info}/RECORD", "\n".join([*record, f"{info}/RECORD,,", ""]))


@pytest.fixture
def second(tmp_path: Path) -> Path:
    """An environment that shows torch and what torch needs, and has no pip."""
    folder = tmp_path / "second"
    venv.create(folder, with_pip=False, symlinks=True)
    shown = tmp_path / "torch-alone"
    shown.mkdir()
    link_packages(closure("torch") - {need.package for need in NEEDS}, shown)
    (packages,) = folder.rglob("site-packages")
    (packages / "torch.pth").write_text(str(shown))
    return folder


def test_a_second_interpreter_runs_the_demo(
    second: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it lacks is refused first, then installed beside it when that is allowed; then it trains."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    for need in NEEDS:
        pack_wheel(need.package, wheels)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    before = sorted(second.rglob("*"))
    interpreter = probe(second)
    assert interpreter.torch_version
    assert [need.module for need in interpreter.missing()] == [need.module for need in NEEDS]
    command = [
        *(sys.executable, "-m", "gradacc_gui", "run", str(ROOT / "assets" / "recipes" / "stdlib-gpt.toml")),
        *("--json", "--python", str(second), "--set", "run.epochs=", "--set", "run.max_samples=64"),
        *("--set", "schedule.warmup_samples=0"),
        *("--set", "run.device=cpu", "--set", "evaluation.every_samples="),
    ]

    refused = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert refused.returncode == 2
    assert (
        "lacks msgspec, safetensors, psutil, nvidia-ml-py, tomlkit, numpy. Run it again with --install"
        in refused.stderr
    )
    assert all_runs() == []

    done = subprocess.run([*command, "--install"], capture_output=True, text=True, check=False, cwd=tmp_path)

    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["step"] for line in lines if line["type"] == "OptimizerStepMeasured"] == [1, 2]
    (run,) = all_runs()
    assert events(run, RunFinished)
    assert events(run, RunStarted)[0].versions["torch"].startswith("2.")
    assert str(interpreter.executable) in run.log_path.read_text()
    assert all(overlay_target(interpreter, need).is_dir() for need in NEEDS)
    assert sorted(second.rglob("*")) == before, "nothing is written into the person's own environment"
