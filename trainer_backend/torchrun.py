"""torch.distributed's launcher: starting a run with it, and knowing that one was started by it. No torch.

    python -m trainer_backend run RUN   (devices = 2)
      becomes   python -P -m torch.distributed.run ... -m trainer_backend run RUN
        starts  rank 0, rank 1 ...      each finds its place in the environment

On one machine nothing listens on a network: launcher and ranks meet by files in the run's directory, and
ranks talk over the loopback interface only.
"""

from __future__ import annotations

import os
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from trainer_backend.errors import GradaccError, UsageError
from trainer_backend.private_files import home, make_folder_in, make_private
from trainer_backend.protocol import RunFailed, RunFinished, RunStopped
from trainer_backend.run_directory import RunDirectory
from trainer_backend.run_facts import RunFacts
from trainer_backend.trainer_lock import holder_of

MAX_RESTARTS: Final = 3
"""How often torchrun starts the ranks again after one was lost."""
SHUTDOWN_S: Final = 600
"""How long ranks that were asked to end may take: a window and a checkpoint."""
SIGNALS: Final = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
MEETING_S: Final = 60.0
"""How long ranks wait for each other's first word."""
TELLING_S: Final = 2.0
"""How long a rank that fails may take to say why."""
FOLDER: Final = "ranks"
"""In the run's directory: the ranks' logs, and files by which they meet."""


class RankPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Which of a launcher's processes this one is."""

    rank: int
    size: int
    local_rank: int
    generation: int
    """How often the launcher has started its ranks anew."""
    launcher: str
    """Tells this launcher from any other."""
    parent_pid: int
    store: str = ""
    """The file by which the ranks meet; empty until rank 0 has said it."""

    @property
    def leads(self) -> bool:
        """Whether this is rank 0, which alone writes the run's journal and recipe."""
        return self.rank == 0

    def is_orphan(self) -> bool:
        """Whether the launcher has died."""
        return os.getppid() != self.parent_pid


def place_of(environment: Mapping[str, str]) -> RankPlace | None:
    """This process's place among a launcher's; None when it was started alone. Raises UsageError."""
    size = _number(environment, "WORLD_SIZE")
    if "RANK" not in environment:
        _refuse_unplaced(environment, size)
        return None
    if size is None:
        message = "RANK is set and WORLD_SIZE is no size. Start the ranks with torchrun, or unset RANK."
        raise UsageError(message)
    rank, local_rank = _number(environment, "RANK"), _number(environment, "LOCAL_RANK")
    if rank is None or rank >= size:
        message = (
            f"RANK = {environment['RANK']} is no rank of WORLD_SIZE = {size}. Start the ranks with torchrun."
        )
        raise UsageError(message)
    if (local_size := _number(environment, "LOCAL_WORLD_SIZE") or size) != size:
        message = (
            f"This machine has {local_size} of the {size} ranks: a run on several machines is not supported"
            " yet. Start one torchrun with --nnodes=1."
        )
        raise UsageError(message)
    parent_pid = os.getppid()
    return RankPlace(
        rank=rank,
        size=size,
        local_rank=rank if local_rank is None else local_rank,
        generation=_number(environment, "TORCHELASTIC_RESTART_COUNT") or 0,
        launcher=f"{parent_pid}-{holder_of(parent_pid).started}",
        parent_pid=parent_pid,
    )


LONGEST_NUMBER: Final = 9
"""Digits of a rank or a size; what is longer was not set by a launcher."""


def _number(environment: Mapping[str, str], name: str) -> int | None:
    text = environment.get(name, "")
    is_number = text.isascii() and text.isdigit() and len(text) <= LONGEST_NUMBER
    return int(text) if is_number else None


def _refuse_unplaced(environment: Mapping[str, str], size: int | None) -> None:
    """Raises UsageError where several processes would make as many runs that know nothing of each other."""
    tasks = _number(environment, "SLURM_NTASKS")
    for name, count, launcher in (("WORLD_SIZE", size, "a launcher"), ("SLURM_NTASKS", tasks, "srun")):
        if count is not None and count > 1:
            message = (
                f"{name} = {count} and RANK is not set: {launcher} would start {count} trainers, each a run"
                f" of its own. Start one torchrun on each machine, or unset {name}."
            )
            raise UsageError(message)


# ---------------------------------------------------------------------------------------- launching


def devices_here(asked: int | str, device: str) -> int:
    """How many ranks `run.devices` and `run.device` ask for on this machine. Raises UsageError."""
    if device == "cpu" or asked == 1:
        return 1 if asked == "all" else int(asked)
    from trainer_backend.readings.describe import describe_devices  # noqa: PLC0415 - the driver's library

    found = describe_devices()
    cards = [card for card in found.cards if card.cuda_index is not None] or list(found.cards)
    if asked == "all":
        return max(1, len(cards))
    if device == "auto" and not cards:
        message = (
            f"run.devices = {asked}, but this machine shows no GPU. Give run.device = cpu for {asked}"
            " processes on the CPU, or run.devices = 1."
        )
        raise UsageError(message)
    if int(asked) > len(cards):
        message = (
            f"run.devices = {asked}, but this machine shows {len(cards)} GPUs. Use that many at most, or all."
        )
        raise UsageError(message)
    return int(asked)


def become_launcher(run: RunDirectory, size: int, arguments: Sequence[str]) -> None:
    """Become torchrun, which starts `size` ranks of `run`. Comes back only where it cannot."""
    folder = make_folder_in(run.path, FOLDER)
    identity = f"{os.getpid()}-{time.time_ns():x}"
    command = [
        sys.executable, "-P", "-m", "torch.distributed.run",
        "--nnodes", "1", "--nproc-per-node", str(size),
        "--rdzv-backend", "c10d", "--rdzv-endpoint", str(folder / f"launcher-{identity}"),
        "--rdzv-conf", "store_type=file", "--rdzv-id", identity,
        "--local-addr", "127.0.0.1",
        "--max-restarts", str(MAX_RESTARTS), "--monitor-interval", "0.1",
        "--signals-to-handle", SIGNALS, "--shutdown-timeout", str(SHUTDOWN_S),
        "--log-dir", str(folder), "--redirects", ",".join(f"{rank}:3" for rank in range(1, size)),
        "-m", "trainer_backend", "run", str(run.path), *arguments,
    ]  # fmt: skip
    environment = dict(os.environ) | environment_of_launcher(size)
    if sys.platform == "win32":  # there a process cannot become another
        import subprocess  # noqa: PLC0415 - only there

        raise SystemExit(subprocess.run(command, env=environment, check=False).returncode)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execve(  # noqa: S606 - a list of arguments that we made
        sys.executable, command, environment
    )


def environment_of_launcher(size: int) -> dict[str, str]:
    """What torchrun and its ranks need besides on one machine."""
    threads = max(1, (os.cpu_count() or 1) // size)
    return {
        # torch 2.14's shared store keeps the addresses of dead ranks, and a restart never meets
        # (https://github.com/pytorch/pytorch/issues/135712).
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PYTHONSAFEPATH": "1",  # torchrun starts ranks without -P
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        **loopback_only(),
    }


def loopback_only() -> dict[str, str]:
    """Variables that keep gloo and NCCL on this machine, where nobody has said otherwise."""
    interface = "lo0" if sys.platform == "darwin" else "lo"
    return {name: os.environ.get(name, interface) for name in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")}


# ------------------------------------------------------------------- files by which ranks tell each other


class Announcement(msgspec.Struct, frozen=True):
    """Rank 0's first word in each generation."""

    run: str
    store: str
    """Where they meet: a file of its own for each generation, since torch takes up an old one as it is."""
    exit_code: int | None = None
    """Not None: the run has ended in an earlier generation; all exit so."""


def announce(place: RankPlace, run: RunDirectory, exit_code: int | None) -> RankPlace:
    """Rank 0: tell the others which run it is, where to meet, and whether anything is left to train."""
    folder = make_folder_in(run.path, FOLDER)
    for old in folder.glob("store-*"):
        old.unlink(missing_ok=True)
    told = Announcement(str(run.path), str(folder / f"store-{uuid.uuid4().hex}"), exit_code)
    _write(_announcement(place), told)
    return msgspec.structs.replace(place, store=told.store)


def announced(place: RankPlace) -> Announcement:
    """Other ranks: what rank 0 tells. Raises GradaccError when it does not."""
    path, deadline = _announcement(place), time.monotonic() + MEETING_S
    while time.monotonic() < deadline and not place.is_orphan():
        try:
            return msgspec.json.decode(path.read_bytes(), type=Announcement)
        except OSError:
            time.sleep(0.02)
    raise GradaccError(
        f"Rank {place.rank} did not hear from rank 0 which run it is. Look at rank 0's output."
    )


def forget_announcements(place: RankPlace) -> None:
    """Rank 0, once all have met: its word is taken away, and those of launchers that are gone."""
    own = _announcement(place)
    own.unlink(missing_ok=True)
    for other in own.parent.glob("*.json"):
        pid, started, *_ = (*other.stem.split("-"), "")
        if pid.isdigit() and holder_of(int(pid)).started != started:
            other.unlink(missing_ok=True)


def _announcement(place: RankPlace) -> Path:
    return make_private(home() / "ranks") / f"{place.launcher}-{place.generation}.json"


def ended_before(run: RunDirectory, place: RankPlace, facts: RunFacts) -> int | None:
    """The exit code, where this launcher's last generation has ended the run for good; else None.

    A launcher starts its ranks again whatever ended them. Only a lost process is worth it.
    """
    folder = make_folder_in(run.path, FOLDER)
    mark = folder / f"began-{place.launcher}"
    if place.generation == 0 or not mark.exists():
        for old in folder.glob("began-*"):
            old.unlink()
        mark.write_text(str(facts.attempt + 1), encoding="ascii")
        return None
    if facts.attempt < int(mark.read_text("ascii")):
        return None
    if facts.ended is None and facts.stopping:  # asked to stop, and ended by force
        return 0
    match facts.ended:
        case RunFailed():
            return 1
        case RunFinished():
            return 0
        case RunStopped(reason=reason) if reason != "signal":
            return 0
        case _:
            return None


def is_restart(place: RankPlace | None) -> bool:
    """Whether a launcher started its ranks again: they go on where they stood, whatever its words were."""
    return place is not None and place.generation > 0


def tell_failure(run: RunDirectory, place: RankPlace, failed: RunFailed) -> None:
    """A rank that ends on an error of its own says so to the next one who asks."""
    with suppress(OSError):
        folder = make_folder_in(run.path, FOLDER)
        _write(folder / f"failed-{place.launcher}-{place.generation}-{place.rank}.json", failed)


def failure_of_another(run: RunDirectory, place: RankPlace) -> RunFailed | None:
    """Why another rank ended, where it says so within a moment."""
    deadline = time.monotonic() + TELLING_S
    pattern = f"failed-{place.launcher}-{place.generation}-*.json"
    while True:
        for path in sorted((run.path / FOLDER).glob(pattern)):
            failed = msgspec.json.decode(path.read_bytes(), type=RunFailed)
            rank = path.stem.rpartition("-")[2]
            return msgspec.structs.replace(failed, reason=f"Rank {rank}: {failed.reason}")
        if time.monotonic() > deadline:
            return None
        time.sleep(0.05)


def _write(path: Path, content: msgspec.Struct) -> None:
    beside = path.with_suffix(".part")
    beside.write_bytes(msgspec.json.encode(content))
    beside.replace(path)
