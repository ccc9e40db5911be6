"""The New-run page: a form built from the configuration's own types, and the recipes it reads and writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from gradacc_gui.form.new_run_page import FormPage

__all__ = ["FormPage"]


def __getattr__(name: str) -> object:
    """`FormPage` is imported when it is asked for: what is read without Qt stays without Qt."""
    if name == "FormPage":
        from gradacc_gui.form.new_run_page import FormPage  # noqa: PLC0415 - see above

        return FormPage
    message = f"module {__name__!r} has no attribute {name!r}"
    raise AttributeError(message)
