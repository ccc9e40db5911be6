"""Who trains in a run's directory: an OS lock that its trainer holds all its life. No torch.

Alive means locked. No process id is trusted alone, for they are reused, other containers count them anew,
and a copied directory names the original's process: the lock's file also says which host, which boot of
it, which PID namespace and when the process started. The directory is locked too where that works, so
that a removed lock file admits no second trainer.
"""

from __future__ import annotations

import errno
import os
import platform
import stat
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Final, Self

import msgspec

from trainer_backend.errors import RunDirectoryError

LOCK_BYTE: Final = 1 << 30
"""Far behind what the file says, so that it can be read under Windows' mandatory locks."""
PROBING_S: Final = 0.5
"""A look at a lock takes microseconds; one that is refused for so long is refused by a trainer."""
LARGEST_BYTES: Final = 4096
_TAKEN: Final = frozenset({errno.EWOULDBLOCK, errno.EAGAIN, errno.EACCES, errno.EDEADLK})
"""What a system says of a lock that another has; anything else is a file system without locks."""


class LockHolder(msgspec.Struct, frozen=True):
    """The process that a lock's file names. Strings are empty where a system does not tell."""

    pid: int
    host: str = ""
    boot_id: str = ""
    pid_namespace: str = ""
    started: str = ""
    """When the process started, in the system's own count; compared, never read."""

    def is_the_process(self, lock_path: Path) -> bool:
        """Whether the process of this number, here and now, is the named one and has the lock's file open."""
        return self == holder_of(self.pid) and bool(self.started) and _has_open(self.pid, lock_path)


def holder_of(pid: int) -> LockHolder:
    """What a lock that this process took would say. `started` is empty when there is no such process."""
    return LockHolder(
        pid=pid,
        host=platform.node(),
        boot_id=_read("/proc/sys/kernel/random/boot_id"),
        pid_namespace=_link("/proc/self/ns/pid"),
        started=_started(pid),
    )


def _read(path: str) -> str:
    try:
        return Path(path).read_text("ascii").strip()
    except (OSError, ValueError):
        return ""


def _link(path: str) -> str:
    try:
        return str(Path(path).readlink())
    except OSError:
        return ""


if sys.platform == "linux":
    _STARTTIME: Final = 19
    """Field 22 of proc_pid_stat(5), counted from behind the process's name."""

    def _started(pid: int) -> str:
        # Ticks since the boot: psutil's create_time adds the wall clock's idea of the boot, which moves.
        behind_name = _read_bytes(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        return behind_name[_STARTTIME].decode("ascii") if len(behind_name) > _STARTTIME else ""

    def _read_bytes(path: str) -> bytes:
        try:
            return Path(path).read_bytes()
        except OSError:
            return b""

    def _has_open(pid: int, path: Path) -> bool:
        try:
            wanted = path.stat()
            files = list(os.scandir(f"/proc/{pid}/fd"))
        except OSError:
            return False
        for file in files:
            with suppress(OSError):
                if os.path.samestat(Path(file.path).stat(), wanted):
                    return True
        return False

else:

    def _started(pid: int) -> str:
        import psutil  # noqa: PLC0415 - only where /proc is not there

        try:
            return repr(psutil.Process(pid).create_time())
        except psutil.Error:
            return ""

    def _has_open(pid: int, path: Path) -> bool:
        import psutil  # noqa: PLC0415 - only where /proc is not there

        try:
            wanted = path.stat()
            files = [Path(file.path) for file in psutil.Process(pid).open_files()]
            return any(file.exists() and os.path.samestat(file.stat(), wanted) for file in files)
        except (psutil.Error, OSError):
            return False


def read_holder(path: Path) -> LockHolder | None:
    """Who a lock's file names; only meaningful while it is locked. None when it names nobody."""
    try:
        handle = os.open(path, os.O_RDONLY | _NONBLOCK)
    except OSError:
        return None
    try:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            return None
        content = os.read(handle, LARGEST_BYTES)
    except OSError:
        return None
    finally:
        os.close(handle)
    number, _, rest = content.partition(b"\n")
    try:
        pid = int(number)
        named = msgspec.json.decode(rest, type=LockHolder) if rest.strip() else LockHolder(pid)
    except (ValueError, msgspec.DecodeError):
        return None
    return named if named.pid == pid else None


class TrainerLock:
    """The lock of one run's directory, held from `take` to `release`."""

    def __init__(self, folder: Path, path: Path) -> None:
        self._folder = folder
        self._path = path
        self._file = -1
        self._directory = -1
        self._is_directory_locked = False
        self._place: os.stat_result | None = None

    def take(self) -> Self:
        """Lock. Raises RunDirectoryError: another trainer has it, or the place takes no lock."""
        try:
            self._file = self._locked_file()
            self._place = self._folder.stat()
            self._lock_directory()
        except OSError as error:
            self.release()
            raise RunDirectoryError(self._why_not(error)) from error
        except BaseException:
            self.release()
            raise
        return self

    def _locked_file(self) -> int:
        """The lock's file, open and locked. Waits for others' looks at it to end."""
        deadline = time.monotonic() + PROBING_S
        while True:
            handle = os.open(self._path, os.O_RDWR | os.O_CREAT | _NONBLOCK | _NOFOLLOW, 0o600)
            try:
                is_ours = self._is_lockable(handle)
            except BaseException:
                os.close(handle)
                raise
            if is_ours:
                _held.add(handle)
                return handle
            os.close(handle)
            if time.monotonic() > deadline:
                raise RunDirectoryError(self._taken())
            time.sleep(0.005)

    def _is_lockable(self, handle: int) -> bool:
        """Lock an open file, unless it was taken from its path meanwhile. Raises OSError."""
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return _try_lock(handle) and self._is_at(self._path, os.fstat(handle))

    def _lock_directory(self) -> None:
        if os.name == "nt":  # a folder cannot be opened there
            return
        self._directory = os.open(self._folder, os.O_RDONLY)
        _held.add(self._directory)
        deadline = time.monotonic() + PROBING_S
        try:
            while not _try_lock(self._directory):
                if time.monotonic() > deadline:
                    raise RunDirectoryError(self._taken())
                time.sleep(0.005)
        except OSError:  # NFS locks no folder that is open for reading only
            return
        self._is_directory_locked = True

    def _taken(self) -> str:
        named = read_holder(self._path)
        if named is None or not named.is_the_process(self._path):
            who = f"process {named.pid} on {named.host or 'an unknown host'}" if named else "unknown process"
        else:
            who = f"process {named.pid}"
        return f"A trainer already runs in {self._folder} ({who}). Stop it first."

    def _why_not(self, error: OSError) -> str:
        if error.errno in _NO_LOCKS:
            return (
                f"{self._path} cannot be locked: {error.strerror}. Without a lock two trainers could write to"
                " one run. Use a local disk (set GRADACC_HOME), or mount this file system with locks."
            )
        if not self._folder.is_dir():
            return f"There is no run directory at {self._folder}."
        return f"{self._path} cannot be written: {error.strerror}. Check its folder's permissions and disk."

    def name(self) -> None:
        """Say in the lock's file who holds it. Raises RunDirectoryError: a full disk."""
        self.write(f"{os.getpid()}\n".encode("ascii") + msgspec.json.encode(holder_of(os.getpid())) + b"\n")

    def write(self, line: bytes) -> None:
        """Have the lock's file say `line`: for a mirror, what another machine's says. As `name`."""
        try:
            os.ftruncate(self._file, 0)
            os.lseek(self._file, 0, os.SEEK_SET)
            os.write(self._file, line)
        except OSError as error:
            raise RunDirectoryError(self._why_not(error)) from error

    def release(self) -> None:
        """Let go; a second call does nothing."""
        for handle in (self._directory, self._file):
            # In a forked child the handles are closed already, and their numbers may be others' by now.
            if handle in _held:
                _held.discard(handle)
                with suppress(OSError):
                    _unlock(handle)
                os.close(handle)
        self._file = self._directory = -1

    # ------------------------------------------------------------------------------ its place

    def is_in_place(self) -> bool:
        """Whether the locked directory still lies at its path, and nobody else can lock it there."""
        if self._place is None or not self._is_at(self._folder, self._place):
            return False
        return self._is_directory_locked or self._is_at(self._path, os.fstat(self._file))

    def place_now(self) -> Path | None:
        """Where the locked directory lies now; None when it is deleted, or the system does not tell."""
        if self._place is not None and self._is_at(self._folder, self._place):
            return self._folder
        found = _path_of(self._directory) if self._directory >= 0 else None
        return found if found is not None and self._place and self._is_at(found, self._place) else None

    @staticmethod
    def _is_at(path: Path, status: os.stat_result) -> bool:
        try:
            return os.path.samestat(path.stat(), status)
        except OSError:
            return False


_NONBLOCK: Final[int] = getattr(os, "O_NONBLOCK", 0)
"""A named pipe in a lock's place must not make a reader wait for ever."""
_NOFOLLOW: Final[int] = getattr(os, "O_NOFOLLOW", 0)
_NO_LOCKS: Final = frozenset(
    {errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP, getattr(errno, "ENOTSUP", errno.EOPNOTSUPP)}
)
_held: set[int] = set()


def _let_go_in_child() -> None:
    # A loader worker made by fork shares the lock with its trainer, and would keep a killed one "alive".
    for handle in _held:
        os.close(handle)
    _held.clear()


if sys.platform == "win32":
    import msvcrt

    def _try_lock(handle: int) -> bool:
        os.lseek(handle, LOCK_BYTE, os.SEEK_SET)
        try:
            msvcrt.locking(handle, msvcrt.LK_NBLCK, 1)
        except OSError as error:
            if error.errno in _TAKEN:
                return False
            raise
        return True

    def is_locked(path: Path, folder: Path) -> bool:
        """Whether a trainer holds the lock now. Looking never gets in a trainer's way."""
        del folder
        for _ in range(3):  # there are no shared locks here, so another's look may be in the way
            try:
                handle = os.open(path, os.O_RDWR)
            except OSError:
                return False
            try:
                if _try_lock(handle):
                    _unlock(handle)
                    return False
            finally:
                os.close(handle)
            time.sleep(0.002)
        return True

    def _unlock(handle: int) -> None:
        os.lseek(handle, LOCK_BYTE, os.SEEK_SET)
        msvcrt.locking(handle, msvcrt.LK_UNLCK, 1)

    def _path_of(handle: int) -> Path | None:
        del handle
        return None

else:
    import fcntl

    os.register_at_fork(after_in_child=_let_go_in_child)

    # flock, not lockf: a POSIX record lock is lost when *any* descriptor of the file closes in its process
    # (a copy of the directory made in a hook is enough), and is never refused within one process.
    def _try_lock(handle: int, kind: int = fcntl.LOCK_EX) -> bool:
        try:
            fcntl.flock(handle, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _TAKEN:
                return False
            raise
        return True

    def is_locked(path: Path, folder: Path) -> bool:
        """Whether a trainer holds the lock now. Looking never gets in a trainer's way, nor another look's.

        Where a lock file was removed from under its trainer the folder's own lock tells.
        """
        return _is_shut(path) or _is_shut(folder)

    def _is_shut(path: Path) -> bool:
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:  # not there, or not ours to read: nobody has trained here
            return False
        try:
            return not _try_lock(handle, fcntl.LOCK_SH)
        except OSError:  # a place without locks lets no trainer in
            return False
        finally:
            os.close(handle)

    def _unlock(handle: int) -> None:
        fcntl.flock(handle, fcntl.LOCK_UN)

    def _path_of(handle: int) -> Path | None:
        """The path of an open folder, as the system knows it now."""
        try:
            if sys.platform == "darwin":
                return Path(os.fsdecode(fcntl.fcntl(handle, fcntl.F_GETPATH, b"\0" * 1024).rstrip(b"\0")))
            return Path(f"/proc/self/fd/{handle}").readlink()
        except OSError:
            return None
