"""ssh never asks: what it would ask for is a sentence, with the command for a terminal."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradacc_gui.attaching.far_hosts import HostSettings
from gradacc_gui.attaching.ssh_line import FarError, explain, far_command, run_far, ssh_command
from tests.support.far_machine import stand_in_machine


def test_ssh_never_asks() -> None:
    """And takes nothing of the host's for an option."""
    command = ssh_command("gpu1", "gradacc runs")
    assert "BatchMode=yes" in command
    assert command[-3:] == ["--", "gpu1", "gradacc runs"]


def test_words_are_quoted_for_the_far_shell() -> None:
    """A run's name may hold anything; the command that starts gradacc is the person's own."""
    settings = HostSettings(gradacc="module load x && gradacc")
    assert far_command(settings, ["relay", "a'; rm -r ~"]) == (
        "module load x && gradacc relay 'a'\"'\"'; rm -r ~'"
    )
    assert far_command(HostSettings(), ["runs"], "/a b").startswith("cd '/a b' && gradacc runs")


@pytest.mark.parametrize(
    ("said", "words", "terminal"),
    [
        ("me@gpu1: Permission denied (publickey,password).", "wants a password", "ssh -fNMS "),
        ("Host key verification failed.", "does not know the key", "ssh me@gpu1"),
        (
            "@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @\nHost key verification failed.",
            "not the one that ssh knows",
            "ssh-keygen -R gpu1",
        ),
        ("ssh: Could not resolve hostname gpu1: Name or service not known", "No machine is called", ""),
        ("ssh: connect to host gpu1 port 22: Connection refused", "cannot be reached", "ssh me@gpu1"),
    ],
)
def test_what_ssh_would_ask_for_is_a_sentence(said: str, words: str, terminal: str) -> None:
    """Whoever reads it knows what to type."""
    error = explain("me@gpu1", 255, said)
    assert words in str(error)
    assert error.terminal.startswith(terminal)
    assert bool(error.terminal) == bool(terminal)


@pytest.mark.parametrize(
    ("code", "said", "words"),
    [
        (127, "sh: 1: gradacc: not found", "--gradacc"),
        (2, "gradacc: 'relay' is none of run, resume. Try gradacc --help.", "older gradacc"),
        (2, "No run is called 'x'. `gradacc runs` lists them.", "gpu1: No run is called 'x'."),
        (3, "", "exit code 3"),
    ],
)
def test_what_the_far_machine_refuses_is_passed_on(code: int, said: str, words: str) -> None:
    """With its name."""
    error = explain("gpu1", code, said)
    assert words in str(error)
    assert not error.may_pass


def test_only_a_network_that_fails_is_tried_again() -> None:
    """A password that is wanted will be wanted again."""
    assert explain("a", 255, "client_loop: send disconnect: Broken pipe").may_pass
    assert explain("a", 137, "").may_pass
    assert not explain("a", 255, "Permission denied (publickey).").may_pass


def test_a_far_command_gets_its_input_and_gives_its_output(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through whatever `ssh` is on the PATH."""
    machine = stand_in_machine(tmp_path, monkeypatch)
    assert run_far(machine.host, "cat", "häh") == "häh"
    with pytest.raises(FarError, match="no such thing"):
        run_far(machine.host, "echo no such thing >&2; exit 2")
    with pytest.raises(FarError, match="did not answer within"):
        run_far(machine.host, "exec sleep 60", timeout_s=0.2)


def test_without_ssh_there_is_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instead of a traceback."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(FarError, match="Install an OpenSSH client"):
        run_far("gpu1", "true")
