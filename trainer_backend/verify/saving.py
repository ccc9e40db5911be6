"""A certificate as a file: JSON, or a page. No torch."""

from __future__ import annotations

from pathlib import Path

from trainer_backend.errors import UsageError
from trainer_backend.verify.html import page
from trainer_backend.verify.report import VerifyReport, encode
from trainer_backend.verify.sentences import Translate, english


def save(report: VerifyReport, path: Path, tr: Translate = english) -> None:
    """Write a certificate: JSON where the name ends so, else a page. Raises UsageError."""
    is_json = path.suffix.lower() == ".json"
    content = encode(report) + b"\n" if is_json else page(report, tr).encode("utf-8")
    try:
        path.expanduser().write_bytes(content)
    except OSError as error:
        message = f"The certificate cannot be saved as {path}: {error.strerror}. Choose another place."
        raise UsageError(message) from error
