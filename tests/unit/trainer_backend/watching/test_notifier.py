"""What is sent, to whom, and that nobody who hangs or refuses can hurt the run."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from trainer_backend.config import NotifySection, RunConfig
from trainer_backend.config_check import check
from trainer_backend.protocol import AlertRaised, AnyEvent, RunFailed, RunFinished, RunStopped, Warned
from trainer_backend.watching.messages import body_from
from trainer_backend.watching.notifier import Notifier

ALERT = AlertRaised(
    code="loss-spike", step=1201, since_step=1201, samples_seen=9608, value=7.25, usual=2.0,
    values={"deviations": 8.5},
)  # fmt: skip
FINISHED = RunFinished(step=5, samples_seen=40, reason="epochs")
FAILED = RunFailed(step=5, samples_seen=40, reason="ValueError: no")


class Service:
    """What a webhook was sent, and how it answers."""

    def __init__(self) -> None:
        self.bodies: list[Any] = []
        self.status = 200
        self.hangs = threading.Event()
        self.hangs.set()
        service = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                service.bodies.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                service.hangs.wait(5)
                self.send_response(service.status)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                """Nothing on the standard error."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"

    def close(self) -> None:
        """Answer who waits, and end."""
        self.hangs.set()
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()


@pytest.fixture
def service() -> Iterator[Service]:
    """A webhook on this machine."""
    made = Service()
    yield made
    made.close()


@contextmanager
def notifier(told: list[AnyEvent], **asked: Any) -> Iterator[Notifier]:
    """One that is drained at the end."""
    made = Notifier(
        NotifySection(**asked), told.append, run="/runs/a", name="digits", host="box", webhook_timeout_s=0.3
    )
    yield made
    made.close()


def test_a_webhook_gets_alerts_and_ends_as_json(service: Service) -> None:
    """A sentence for people, numbers for programs; a stop that was asked for is nobody's news."""
    told: list[AnyEvent] = []
    with notifier(told, webhook=service.url) as made:
        for event in (ALERT, RunStopped(step=5, samples_seen=40, reason="stop"), FINISHED, FAILED):
            made.take(event)
    assert [body["occasion"] for body in service.bodies] == ["alert", "finished", "failed"]
    assert service.bodies[0]["text"].startswith("digits: Loss spike at step 1,201: 7.25, usually 2")
    assert (service.bodies[0]["step"], service.bodies[0]["host"]) == (1201, "box")
    assert told == []


def test_only_what_was_asked_for_is_sent(service: Service) -> None:
    """And a body of one's own."""
    asked = {
        "webhook": service.url,
        "template": '{"content": ["{text}!", {"at": "{step}"}]}',
        "on": ("failed",),
    }
    with notifier([], **asked) as made:
        made.take(ALERT)
        made.take(FAILED)
    assert service.bodies == [{"content": ["failed at step 5: ValueError: no!", {"at": 5}]}]


def test_a_service_that_refuses_is_said_once_and_tried_again(service: Service) -> None:
    """Two messages, two tries, one warning."""
    told: list[AnyEvent] = []
    service.status = 403
    with notifier(told, webhook=service.url) as made:
        made.take(ALERT)
        made.take(ALERT)
        deadline = time.monotonic() + 5
        while len(service.bodies) < 2 and time.monotonic() < deadline:
            time.sleep(0.01)
    assert len(service.bodies) == 2
    assert told == [
        Warned(
            code="notify-failed", values={"what": "webhook", "reason": "the service answered 403 Forbidden"}
        )
    ]


def test_a_service_that_hangs_slows_nobody(service: Service) -> None:
    """Taking a message returns at once; the thread gives up after its timeout."""
    told: list[AnyEvent] = []
    service.hangs.clear()
    with notifier(told, webhook=service.url) as made:
        for _ in range(200):  # more than may wait
            made.take(ALERT)
        made.close(wait_s=0.0)
        assert len(service.bodies) <= 2
    service.hangs.set()
    assert {event.values["what"] for event in told if isinstance(event, Warned)} <= {"queue", "webhook"}


def test_a_command_gets_the_message_on_its_input_and_in_its_environment(tmp_path: Path) -> None:
    """As JSON and as GRADACC_TEXT."""
    program = tmp_path / "tell.py"
    program.write_text(
        "import json, os, pathlib, sys\n"
        f"pathlib.Path({str(tmp_path / 'told.json')!r}).write_text(json.dumps("
        "[json.load(sys.stdin), os.environ['GRADACC_TEXT'], os.environ['GRADACC_STEP']]))\n"
    )
    told: list[AnyEvent] = []
    with notifier(told, command=f'"{sys.executable}" "{program}"') as made:
        made.take(FINISHED)
    message, text, step = json.loads((tmp_path / "told.json").read_text())
    assert (message["occasion"], text, step) == ("finished", "finished at step 5", "5")
    assert told == []


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("no-such-program-here x", "was not found"),
        (f'"{sys.executable}" -c "import sys; sys.exit(\'no\')"', "exit code 1: no"),
    ],
)
def test_a_command_that_fails_is_said(command: str, reason: str) -> None:
    """With why."""
    told: list[AnyEvent] = []
    with notifier(told, command=command) as made:
        made.take(ALERT)
        deadline = time.monotonic() + 10
        while not told and time.monotonic() < deadline:
            time.sleep(0.01)
    (warned,) = told
    assert isinstance(warned, Warned)
    assert reason in str(warned.values["reason"])


def test_after_the_end_a_failure_goes_to_the_log(capsys: pytest.CaptureFixture[str]) -> None:
    """The journal is closed by then."""
    told: list[AnyEvent] = []
    with notifier(told, webhook="http://127.0.0.1:9/none") as made:
        made._ended = True
        made.take(FINISHED)
    assert told == []
    assert "The webhook of [notify] failed: " in capsys.readouterr().err


def test_without_an_address_there_is_no_thread() -> None:
    """Nobody pays for what they do not use."""
    before = threading.active_count()
    with notifier([]) as made:
        made.take(ALERT)
        assert threading.active_count() == before


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("webhook", "hooks.example.com", "It must look like https://hooks.example.com"),
        ("template", '{"text": {text}}', "It is not valid JSON"),
        ("on", ["never"], "It must be a list"),
    ],
)
def test_what_cannot_be_sent_is_refused_before_the_run(key: str, value: object, words: str) -> None:
    """With what would be right."""
    recipe = {"task": {"kind": "language-model"}, "run": {"epochs": 1}, "notify": {key: value}}
    found = check(recipe)
    assert isinstance(found, list)
    assert [problem.path.partition("[")[0] for problem in found] == [f"notify.{key}"]
    assert words in found[0].message
    assert isinstance(check(recipe | {"notify": {}}), RunConfig)


def test_a_template_keeps_what_it_does_not_know() -> None:
    """Braces of one's own stay."""
    assert json.loads(body_from('{"a": "{other} {step}", "b": [1, null]}', {"step": 3})) == {
        "a": "{other} 3",
        "b": [1, None],
    }
