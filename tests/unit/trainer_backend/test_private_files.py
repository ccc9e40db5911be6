"""Folders are their owner's alone at every level, and nobody else's folder is used."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.stand_in import new_run
from trainer_backend.errors import RunDirectoryError
from trainer_backend.private_files import check_private, make_folder_in, make_private


@pytest.fixture
def open_umask() -> Iterator[None]:
    """What a container or a careless profile sets: nothing is withheld."""
    before = os.umask(0)
    yield
    os.umask(before)


def modes(folder: Path, path: Path) -> list[int]:
    """Of `folder` and each level below it down to `path`."""
    names = path.relative_to(folder).parts
    levels = [folder, *(folder.joinpath(*names[: count + 1]) for count in range(len(names)))]
    return [stat.S_IMODE(level.stat().st_mode) for level in levels]


@pytest.mark.usefixtures("open_umask")
def test_every_level_that_is_made_is_its_owner_s_alone(gradacc_home: Path) -> None:
    """Not the last one only: the parents too."""
    made = make_private(gradacc_home / "overlay" / "abi" / "package")
    assert modes(gradacc_home, made) == [0o700] * 4


@pytest.mark.usefixtures("open_umask")
def test_a_run_s_folders_and_their_parents_are_its_owner_s_alone(gradacc_home: Path) -> None:
    """Whatever the umask."""
    run = new_run()
    assert modes(gradacc_home, run.inbox_path) == [0o700] * 4


@pytest.mark.usefixtures("open_umask")
def test_levels_that_an_older_gradacc_left_open_are_closed(gradacc_home: Path) -> None:
    """Those below the home; the home itself stays readable, and is closed for writing."""
    (gradacc_home / "trainer").mkdir(parents=True)
    make_private(gradacc_home / "trainer" / "copy")
    assert modes(gradacc_home, gradacc_home / "trainer") == [0o755, 0o700]


@pytest.mark.usefixtures("open_umask")
def test_nothing_above_or_beside_the_home_is_touched(gradacc_home: Path, tmp_path: Path) -> None:
    """A shared place stays as it is."""
    above = gradacc_home.parent
    above.chmod(0o755)
    elsewhere = tmp_path / "shared"
    elsewhere.mkdir(mode=0o775)
    elsewhere.chmod(0o775)
    make_private(gradacc_home / "runs")
    make_private(elsewhere)
    assert stat.S_IMODE(above.stat().st_mode) == 0o755
    assert stat.S_IMODE(elsewhere.stat().st_mode) == 0o775


def test_a_sticky_home_stays_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """GRADACC_HOME=/tmp: nobody moves another's folders there."""
    tmp_path.chmod(0o1777)
    monkeypatch.setenv("GRADACC_HOME", str(tmp_path))
    make_private(tmp_path / "runs")
    assert modes(tmp_path, tmp_path / "runs") == [0o1777, 0o700]
    tmp_path.chmod(0o700)


@pytest.mark.parametrize("level", ["", "trainer", "trainer/copy"])
def test_another_user_s_folder_is_refused(
    level: str, gradacc_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any level: who owns one may change what lies below it."""
    made = make_private(gradacc_home / "trainer" / "copy")
    foreign = gradacc_home / level
    shipped = Path.stat

    def owned_by_another(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        status = shipped(path, follow_symlinks=follow_symlinks)
        return os.stat_result((*status[:4], os.geteuid() + 1, *status[5:])) if path == foreign else status

    monkeypatch.setattr(Path, "stat", owned_by_another)
    with pytest.raises(RunDirectoryError, match=r"belongs to another user.*Set GRADACC_HOME"):
        check_private(made)


def test_a_folder_inside_is_never_made_with_its_parent(tmp_path: Path) -> None:
    """A run's directory that was renamed must not come again."""
    with pytest.raises(FileNotFoundError):
        make_folder_in(tmp_path / "gone", "checkpoints")
    assert not (tmp_path / "gone").exists()
