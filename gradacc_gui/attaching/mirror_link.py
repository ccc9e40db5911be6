"""One line to one run on another machine: opened, fed into its mirror, opened again when it drops.

ssh HOST gradacc relay RUN --after SEQ  ─ frames ─▶ mirror ─▶ whoever shows it
inbox of the mirror  ─ JSON lines ─▶ ssh ─▶ inbox of the run
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from gradacc_gui.attaching.far_hosts import FarAddress, HostSettings, host_folder
from gradacc_gui.attaching.mirror import LineState, Mirror
from gradacc_gui.attaching.ssh_line import FarError, SshLine, far_command
from gradacc_gui.session.following import head
from trainer_backend import __version__
from trainer_backend.errors import GradaccError
from trainer_backend.relaying.relay_messages import FORMAT, AnyMessage, FarStanding, FrameReader, Hello
from trainer_backend.run_directory import RunDirectory

INBOX_S: Final = 0.02
"""Between two looks into the mirror's inbox."""
HELLO_S: Final = 60.0
"""How long a machine may take from the start of ssh to its first word."""
SILENT_S: Final = 40.0
"""A relay speaks every second; a line that is silent for so long is dropped."""
FIRST_DELAY_S: Final = 1.0
LONGEST_DELAY_S: Final = 30.0


class MirrorLink:
    """Feeds a mirror until it is told to end. `step` waits at most a few hundredths of a second.

    `told` is called with each change of the line's state.
    """

    def __init__(
        self,
        address: FarAddress,
        settings: HostSettings,
        told: Callable[[LineState], None] = lambda _state: None,
    ) -> None:
        self.address, self._settings, self._told = address, settings, told
        self.mirror: Mirror | None = None
        """None until the far machine has said which run it is."""
        self.connected = False
        self.has_heard_all = False
        """Whether the far trainer has ended, and all that it wrote is here."""
        self._line: SshLine | None = None
        self._frames = FrameReader()
        self._heard_at = 0.0
        self._delay_s = FIRST_DELAY_S
        self._next_try_at = 0.0
        self._after = 0
        """Number of the last event that the far side was told of."""

    def step(self) -> None:
        """Take what is there. Raises FarError (a refusal), and RunDirectoryError for a full disk here."""
        if self._line is None:
            if time.monotonic() < self._next_try_at:
                time.sleep(INBOX_S)
                return
            self._open()
            return
        piece = self._line.get(INBOX_S)
        if piece is None:
            patience_s = SILENT_S if self.connected else HELLO_S
            if time.monotonic() - self._heard_at > patience_s:
                self._drop(f"{self.address.host} is silent.")
        elif piece == b"":
            self._drop("")
        else:
            self._heard_at = time.monotonic()
            for message in self._frames.take(piece):
                self._take(message)
        if self.connected:
            self._hand_on()

    def _open(self) -> None:
        after = self._after = _known(self.address) if self.mirror is None else self.mirror.last
        run = self.address.run if self.mirror is None else self.mirror.origin.path
        far = far_command(self._settings, ["relay", run, "--after", str(after)])
        self._tell(LineState(state="connecting"))
        self._line = SshLine(self.address.host, far)
        self._frames = FrameReader()
        self._heard_at = time.monotonic()

    def _take(self, message: AnyMessage) -> None:
        if not isinstance(message, Hello):
            if self.mirror is not None and self.connected:
                self.mirror.take(message)
                if isinstance(message, FarStanding):
                    self.has_heard_all = not message.alive and message.head <= self.mirror.last
            return
        self._check(message)
        if self.mirror is None:
            self.mirror = Mirror(self.address.host, message)
            if self.mirror.last != self._after:  # the mirror has less or more than was thought
                self._end_line()
                self._open()
                return
        elif not self.mirror.fits(message):
            message_ = f"{self.address.host} has begun another journal for {message.run}. Attach to it again."
            raise FarError(message_)
        self.connected = True
        self._delay_s = FIRST_DELAY_S
        self.mirror.say_again()
        self._tell(LineState(state="connected"))

    def _check(self, hello: Hello) -> None:
        if hello.format != FORMAT or hello.version != __version__:
            message = (
                f"{self.address.host} has gradacc {hello.version} and this machine {__version__}. Install the"
                " same version on both, then attach again."
            )
            raise FarError(message)

    def _hand_on(self) -> None:
        assert self.mirror is not None
        assert self._line is not None
        for line in self.mirror.commands():
            if not self._line.send(line):
                return  # the line has ended: what was not answered is said again on the next one

    def _drop(self, why: str) -> None:
        """The line has ended: once it was there, it is opened again; else that is the end."""
        error = self._end_line()
        reason = FarError(why, may_pass=True) if why else error
        if self.mirror is None or not reason.may_pass:
            raise reason
        self._next_try_at = time.monotonic() + self._delay_s
        self._delay_s = min(LONGEST_DELAY_S, self._delay_s * 2)
        self._tell(LineState(state="waiting", sentence=str(reason), terminal=reason.terminal))

    def _end_line(self) -> FarError:
        assert self._line is not None
        line, self._line, self.connected = self._line, None, False
        return line.close()

    def _tell(self, state: LineState) -> None:
        if self.mirror is not None:
            self.mirror.tell(state)
        self._told(state)

    def close(self, ended: LineState | None = None) -> None:
        """End the line; the run on the other machine goes on."""
        if self._line is not None:
            self._end_line()
        if self.mirror is not None:
            self.mirror.tell(ended or LineState())
            self.mirror.close()


def _known(address: FarAddress) -> int:
    """The newest event of what is probably the run's mirror, if it was given by its id; else 0."""
    run = RunDirectory(host_folder(address.host) / address.run)
    is_id = address.run == run.id and run.mirrored() is not None
    with suppress(GradaccError):
        return head(run) if is_id else 0
    return 0
