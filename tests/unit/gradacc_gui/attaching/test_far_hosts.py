"""How other machines are named, and which are known."""

from __future__ import annotations

from pathlib import Path

import pytest

from gradacc_gui.attaching.far_hosts import (
    FarAddress,
    host_folder,
    known_hosts,
    parse_address,
    remember_host,
    settings_of_host,
)
from trainer_backend.errors import UsageError
from trainer_backend.run_directory import mirrors_folder


@pytest.mark.parametrize(
    ("text", "host", "run"),
    [
        ("gpu1:demo", "gpu1", "demo"),
        ("me@gpu1.lab:/scratch/runs/a", "me@gpu1.lab", "/scratch/runs/a"),
        ("gpu1:", "gpu1", ""),
        ("[::1]:a", "[::1]", "a"),
    ],
)
def test_an_address_is_a_host_and_a_run(text: str, host: str, run: str) -> None:
    """As scp writes them."""
    assert parse_address(text) == FarAddress(host, run)


@pytest.mark.parametrize("text", ["demo", "-oProxyCommand=x:a", "a b:c", ":run", "$(x):y", "a;b:c", "a\n:b"])
def test_what_is_no_address_is_refused(text: str) -> None:
    """Above all what ssh would take for an option, or a shell for a command."""
    with pytest.raises(UsageError, match="HOST"):
        parse_address(text)


def test_hosts_are_read_from_ssh_config(tmp_path: Path) -> None:
    """With what it includes; patterns are no machines."""
    (tmp_path / "more.conf").write_text("Host far *.lab\n  User me\nHost gpu1\n")
    config = tmp_path / "config"
    config.write_text(
        '# all\nInclude more.conf\nhost=gpu2 "gpu3" !gpu4 gpu?\n  HostName x\nMatch all\nHost -v\n'
    )
    assert known_hosts(config) == ["far", "gpu1", "gpu2", "gpu3"]
    assert known_hosts(tmp_path / "none") == []


def test_a_config_that_includes_itself_ends(tmp_path: Path) -> None:
    """ssh stops after some levels, too."""
    config = tmp_path / "config"
    config.write_text("Host a\nInclude config\n")
    assert known_hosts(config) == ["a"]


def test_how_gradacc_is_started_there_is_remembered() -> None:
    """Until another command is given."""
    assert settings_of_host("gpu1").gradacc == "gradacc"
    remember_host("gpu1", "/opt/venv/bin/gradacc")
    assert remember_host("gpu1", None).gradacc == "/opt/venv/bin/gradacc"
    assert settings_of_host("gpu2").gradacc == "gradacc"
    with pytest.raises(UsageError, match="not a command"):
        remember_host("gpu1", "a\nb")


def test_a_hosts_folder_stays_in_its_place() -> None:
    """Whatever it is called."""
    assert host_folder("me@[::1]").parent == mirrors_folder()
    assert host_folder("a%2f..").name == "a%252f.."
