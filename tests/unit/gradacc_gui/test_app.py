"""Starting the application, above all where it cannot."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from gradacc_gui.app import _reason

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.skipif(sys.platform != "linux", reason="only X and Wayland can be missing")
def test_a_missing_display_is_a_sentence_and_not_an_abort() -> None:
    """Exit 2, how to run without a window, no core dump, no Qt prose."""
    environment = os.environ | {"QT_QPA_PLATFORM": "xcb", "DISPLAY": ":987"}
    environment.pop("WAYLAND_DISPLAY", None)
    done = subprocess.run(
        [sys.executable, "-m", "gradacc_gui.app"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env=environment,
        timeout=60,
    )
    assert done.returncode == 2
    said = done.stderr.strip().splitlines()
    assert len(said) == 1, said
    assert said[0].startswith("gradacc cannot open its window")
    assert "gradacc run RECIPE" in said[0]


def test_the_reason_names_the_display_or_the_library() -> None:
    """Of all that Qt says, the line that helps."""
    assert _reason(["qt.qpa.xcb: could not connect to display :5"], "x") == "there is no display :5"
    needed = "From 6.5.0, xcb-cursor0 or libxcb-cursor0 is needed to load the Qt xcb platform plugin."
    assert _reason([needed], "This application failed") == needed.rstrip(".")
    assert _reason([], "It broke.\nMore") == "It broke"


def test_an_unknown_run_is_a_sentence(capfd: pytest.CaptureFixture[str]) -> None:
    """Before anything of Qt is set up."""
    from gradacc_gui.app import main

    assert main(["no-such-run"]) == 2
    assert "no-such-run" in capfd.readouterr().err
