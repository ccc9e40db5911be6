"""Tells people of alerts and ends: a webhook and a command of theirs, from a thread that can hurt nothing.

The training thread only puts into a queue. A service that hangs or refuses costs the thread its timeout,
and is said once in the journal (and the run's log); later messages are still tried.
"""

from __future__ import annotations

import contextlib
import os
import queue
import shlex
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from typing import Final

import msgspec

from trainer_backend.config import NotifySection
from trainer_backend.protocol import AnyEvent, Event, Warned
from trainer_backend.watching.messages import DEFAULT_TEMPLATE, RunMessage, body_from, message_of

THREAD_NAME: Final = "gradacc-notify"
WEBHOOK_TIMEOUT_S: Final = 10.0
COMMAND_TIMEOUT_S: Final = 60.0
DRAIN_S: Final = 15.0
"""How long a run's end waits for its last messages."""
MOST_WAITING: Final = 100


class Notifier:
    """Sends what `asked` wants to be told. `put` takes a `Warned` where it cannot be sent."""

    def __init__(
        self,
        asked: NotifySection,
        put: Callable[[AnyEvent], None],
        *,
        run: str,
        name: str,
        host: str,
        webhook_timeout_s: float = WEBHOOK_TIMEOUT_S,
    ) -> None:
        self._asked = asked
        self._put = put
        self._about = {"run": run, "name": name, "host": host}
        self._timeout_s = webhook_timeout_s
        self._waiting: queue.Queue[RunMessage | None] = queue.Queue(MOST_WAITING)
        self._told: set[str] = set()
        self._ended = self._given_up = False
        self._thread: threading.Thread | None = None
        if asked.webhook or asked.command:
            self._thread = threading.Thread(target=self._send_all, name=THREAD_NAME, daemon=True)
            self._thread.start()

    def take(self, event: Event) -> None:
        """A fact of the run; never waits."""
        if self._thread is None:
            return
        message = message_of(event, **self._about)
        if message is None or message.occasion not in self._asked.on:
            return
        try:
            self._waiting.put_nowait(message)
        except queue.Full:
            self._say("queue", "more messages came than could be sent")

    def close(self, wait_s: float = DRAIN_S) -> None:
        """The run has ended: send what waits, for at most `wait_s`. From now on faults go to the log only."""
        self._ended = True
        if self._thread is None:
            return
        with contextlib.suppress(queue.Empty):
            while self._waiting.full():  # the newest, which tells the end, matters more than the oldest
                self._waiting.get_nowait()
        self._waiting.put(None)
        self._thread.join(wait_s)
        self._given_up = True

    def _send_all(self) -> None:
        while (message := self._waiting.get()) is not None and not self._given_up:
            if self._asked.webhook:
                self._try("webhook", self._post, message)
            if self._asked.command:
                self._try("command", self._call, message)

    def _try(self, what: str, send: Callable[[RunMessage], None], message: RunMessage) -> None:
        try:
            send(message)
        except Exception as error:  # noqa: BLE001 - whatever a service or a command does must not end a run
            self._say(what, _reason(error))

    def _say(self, what: str, reason: str) -> None:
        if what in self._told:
            return
        self._told.add(what)
        if self._ended:
            sys.stderr.write(f"The {what} of [notify] failed: {reason}\n")
        else:
            self._put(Warned(code="notify-failed", values={"what": what, "reason": reason}))

    def _post(self, message: RunMessage) -> None:
        body = body_from(self._asked.template or DEFAULT_TEMPLATE, message.values())
        head = {"Content-Type": "application/json", "User-Agent": "gradacc"}
        request = urllib.request.Request(self._asked.webhook, body, head, method="POST")  # noqa: S310 - checked: http(s)
        with urllib.request.urlopen(request, timeout=self._timeout_s) as answer:  # noqa: S310
            answer.read(1000)

    def _call(self, message: RunMessage) -> None:
        """The person's own command: the message in its environment and, as JSON, on its standard input."""
        told = {f"GRADACC_{name.upper()}": str(value) for name, value in message.values().items()}
        done = subprocess.run(
            shlex.split(self._asked.command, posix=os.name == "posix"),
            input=msgspec.json.encode(message), capture_output=True, check=False,
            timeout=COMMAND_TIMEOUT_S, env=os.environ | told,
        )  # fmt: skip
        if done.returncode != 0:
            said = done.stderr.decode("utf-8", "replace").strip().splitlines()[-1:] or ["no message"]
            raise RuntimeError(f"exit code {done.returncode}: {said[0][:200]}")


def _reason(error: Exception) -> str:
    match error:
        case subprocess.TimeoutExpired():
            return f"it did not end within {error.timeout:.0f} s"
        case urllib.error.HTTPError():
            return f"the service answered {error.code} {error.reason}"
        case urllib.error.URLError():
            return str(error.reason)
        case FileNotFoundError():
            return f"{error.filename} was not found"
        case _:
            return str(error) or type(error).__name__
