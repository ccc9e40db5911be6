"""The wheel, installed outside of the checkout, has all that the app needs."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]

OPEN_AND_CLOSE = """
from PySide6.QtCore import QTimer
from PySide6.QtWidgets import QApplication
from gradacc_gui import app, cli

make = app.make_application

def make_and_close(*arguments):
    application = make(*arguments)

    def close():
        (window,) = [w for w in application.topLevelWidgets() if w.isVisible() and w.isWindow()]
        assert not application.windowIcon().pixmap(32, 32).isNull()
        assert window.grab().width() > 600
        print("painted")
        application.closeAllWindows()

    QTimer.singleShot(1000, close)
    return application

app.make_application = make_and_close
raise SystemExit(cli.main([]))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from the checkout, without a network."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=CHECKOUT, check=True, capture_output=True, timeout=60)
    (built,) = folder.glob("gradacc-*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of commands of an environment that has the wheel; its dependencies are those of this one.

    A path in a .pth file shows another environment's packages, yet not its editable installations.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.EnvBuilder(with_pip=False).create(folder)
    commands = folder / ("Scripts" if sys.platform == "win32" else "bin")
    python = commands / ("python.exe" if sys.platform == "win32" else "python")
    told = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        check=True, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    packages = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    (Path(told.stdout.strip()) / "dependencies.pth").write_text("\n".join(packages), "utf-8")
    install = [sys.executable, "-m", "pip", "--python", str(python), "install", "--no-deps", str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=120)
    return commands


def outside(command: list[str | Path], folder: Path) -> str:
    """What a command prints that is run in a folder that knows nothing of the checkout."""
    clean = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    done = subprocess.run(
        command, cwd=folder, env=clean, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_console_command_helps(installed: Path, tmp_path: Path) -> None:
    """`gradacc --help` names every command."""
    told = outside([installed / "gradacc", "--help"], tmp_path)
    assert "usage: gradacc" in told
    assert "verify" in told


def test_every_asset_but_screenshots_comes_along(wheel: Path) -> None:
    """An icon that is missing shows as an empty button, to users only."""
    folders = ("icons", "themes", "recipes")
    wanted = {
        path.relative_to(CHECKOUT / "assets").as_posix()
        for folder in folders
        for path in (CHECKOUT / "assets" / folder).rglob("*")
        if path.is_file()
    }
    prefix = "gradacc_gui/assets/"
    with zipfile.ZipFile(wheel) as archive:
        packed = {name.removeprefix(prefix) for name in archive.namelist() if name.startswith(prefix)}
    assert packed == wanted
    assert {"icons/gradacc.svg", "themes/gradacc.qss"} <= packed


def test_assets_are_found_beside_the_installed_package(installed: Path, tmp_path: Path) -> None:
    """Not those of the checkout."""
    program = "from gradacc_gui.assets import asset; print(asset('icons/gradacc.svg'))"
    found = Path(outside([installed / "python", "-c", program], tmp_path).strip())
    assert found.is_relative_to(installed.parent)
    assert found.is_file()


def test_the_window_opens_from_the_wheel(installed: Path, tmp_path: Path) -> None:
    """Offscreen: painted once with its icon, then closed."""
    assert outside([installed / "python", "-c", OPEN_AND_CLOSE], tmp_path).strip() == "painted"
