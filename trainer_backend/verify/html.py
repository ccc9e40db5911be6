"""The certificate as one page: no script, nothing from elsewhere, light and dark, printable; and as a file.

No torch.
"""

from __future__ import annotations

import time
from html import escape
from pathlib import Path
from typing import Final

from trainer_backend.errors import UsageError
from trainer_backend.private_files import expanded
from trainer_backend.verify import sentences
from trainer_backend.verify.report import Comparison, VerifyReport, encode

_STYLE: Final = """
:root { --bg: #f4f5f7; --panel: #ffffff; --line: #dde1e7; --text: #1b1f26;
  --muted: #68717f; --ok: #12805c; --warning: #a15c00; --bad: #c2323a; }
@media (prefers-color-scheme: dark) { :root { --bg: #14161a; --panel: #1b1e24; --line: #2b303a;
  --text: #e7e9ed; --muted: #8a93a3; --ok: #3fb98a; --warning: #e6a23c; --bad: #e5646a; } }
* { box-sizing: border-box; }
body { margin: 0; padding: 32px 24px; background: var(--bg); color: var(--text); line-height: 1.5;
  font: 14px/1.5 system-ui, sans-serif; font-variant-numeric: tabular-nums; }
main { max-width: 980px; margin: 0 auto; }
h1 { font-size: 26px; margin: 4px 0; } h2 { font-size: 15px; margin: 0 0 12px; }
section { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 16px;
  margin: 16px 0; overflow-x: auto; }
.muted { color: var(--muted); } .equal { color: var(--ok); }
.per-micro-batch { color: var(--warning); }
.not-equal, .no { color: var(--bad); } .yes { color: var(--ok); }
table { border-collapse: collapse; width: 100%; }
th { font-weight: 400; color: var(--muted); text-align: left; }
th, td { padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
td.n, th.n { text-align: right; }
.culprit { margin: 0 0 14px; } .culprit p { margin: 2px 0; }
code { font-family: ui-monospace, monospace; font-size: 12px; overflow-wrap: anywhere; }
@media print { body { background: none; padding: 0; } section { break-inside: avoid; } }
"""


def page(report: VerifyReport, tr: sentences.Translate = sentences.english) -> str:
    """The whole page; every text from outside is escaped."""
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(report.made_at))
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(report.recipe)}: {escape(sentences.headline(report, tr))}</title>",
        f"<style>{_STYLE}</style></head><body><main>",
        f'<p class="muted">{escape(tr("Equivalence certificate"))} · {escape(report.recipe)} · {made}</p>',
        f'<h1 class="{report.verdict}">{escape(sentences.headline(report, tr))}</h1>',
        f"<p>{escape(sentences.meaning(report, tr))}</p>",
        _culprits(report, tr),
        _comparisons(report, tr),
        _layers(report, tr),
        _published(report, tr),
        _facts(report, tr),
        _remarks(report, tr),
        "</main></body></html>\n",
    ]
    return "\n".join(part for part in parts if part)


def _culprits(report: VerifyReport, tr: sentences.Translate) -> str:
    if not report.culprits:
        return ""
    rows = []
    for entry in report.culprits:
        sentence, remedy = sentences.culprit(entry, tr)
        where = f"<p><code>{escape(', '.join(entry.where))}</code></p>" if entry.where else ""
        rows.append(
            f'<div class="culprit"><p><strong>{escape(sentence)}</strong></p>{where}'
            f'<p class="muted">{escape(remedy)}</p></div>'
        )
    title = (
        tr("What is defined per micro-batch") if report.verdict == "per-micro-batch" else tr("What breaks it")
    )
    return f"<section><h2>{escape(title)}</h2>{''.join(rows)}</section>"


def _comparisons(report: VerifyReport, tr: sentences.Translate) -> str:
    heads = (
        "N",
        "micro-batches",
        "cut",
        "precision",
        "error",
        "by definition",
        "limit",
        "α",
        "cosine",
        "loss",
        "D",
        "",
    )
    numeric = {"N", "error", "by definition", "limit", "α", "cosine", "loss", "D"}
    head = "".join(f'<th class="{"n" if name in numeric else ""}">{escape(tr(name))}</th>' for name in heads)
    rows = "".join(_row(entry, tr) for entry in report.comparisons)
    return (
        f"<section><h2>{escape(tr('One large batch against N micro-batches'))}</h2>"
        f"<table><tr>{head}</tr>{rows}</table></section>"
    )


def _row(entry: Comparison, tr: sentences.Translate) -> str:
    holds = sentences.holds(entry, tr)
    mark = "no" if not entry.holds else "yes" if entry.equals_large_batch else "muted"
    cells = (
        ("n", str(entry.steps)),
        ("", sentences.sizes(entry)),
        ("", tr(sentences.FOLDS[entry.fold])),
        ("", entry.precision),
        ("n", sentences.small(entry.error)),
        ("n", sentences.small(entry.definition_error)),
        ("n", sentences.small(entry.limit)),
        ("n", sentences.plain(entry.alpha)),
        ("n", sentences.plain(entry.cosine)),
        ("n", sentences.plain(entry.loss)),
        ("n", sentences.plain(entry.denominator)),
        (mark, holds),
    )
    return "<tr>" + "".join(f'<td class="{style}">{escape(text)}</td>' for style, text in cells) + "</tr>"


def _layers(report: VerifyReport, tr: sentences.Translate) -> str:
    entry = sentences.worst_comparison(report)
    if entry is None or not entry.worst_layers:
        return ""
    rows = "".join(
        f"<tr><td><code>{escape(layer.name)}</code></td><td class='n'>{sentences.small(layer.error)}</td>"
        f"<td class='n'>{sentences.plain(layer.alpha)}</td>"
        f"<td class='n'>{sentences.plain(layer.cosine)}</td></tr>"
        for layer in entry.worst_layers
    )
    title = tr("Worst layers, N = {steps}, {cut}, {precision}").format(
        steps=entry.steps, cut=tr(sentences.FOLDS[entry.fold]), precision=entry.precision
    )
    return (
        f"<section><h2>{escape(title)}</h2><table><tr><th>{escape(tr('layer'))}</th>"
        f"<th class='n'>{escape(tr('error'))}</th><th class='n'>α</th>"
        f"<th class='n'>{escape(tr('cosine'))}</th></tr>{rows}</table></section>"
    )


def _published(report: VerifyReport, tr: sentences.Translate) -> str:
    if not report.published:
        return ""
    rows = "".join(
        f"<tr><td>{escape(entry.title)}</td><td>{escape(entry.published)}</td>"
        f"<td class='{'per-micro-batch' if entry.differs else ''}'>{escape(entry.here)}</td></tr>"
        for entry in report.published
    )
    source = f"<p class='muted'>{escape(report.published_source)}</p>" if report.published_source else ""
    return (
        f"<section><h2>{escape(tr('As published, and in this run'))}</h2>{source}<table><tr><th></th>"
        f"<th>{escape(tr('as published'))}</th><th>{escape(tr('in this run'))}</th></tr>"
        f"{rows}</table></section>"
    )


def _facts(report: VerifyReport, tr: sentences.Translate) -> str:
    rows = "".join(
        f"<tr><th>{escape(tr(name))}</th><td>{escape(value)}</td></tr>"
        for name, value in sentences.facts(report, tr)
    )
    floors = "".join(
        f"<tr><td>{floor.precision}</td><td class='n'>{sentences.small(floor.one_fold_error)}</td>"
        f"<td class='n'>{sentences.small(floor.repeat)}</td>"
        f"<td class='n'>{sentences.small(floor.order)}</td></tr>"
        for floor in report.floors
    )
    return (
        f"<section><h2>{escape(tr('How it was checked'))}</h2><table>{rows}</table></section>"
        f"<section><h2>{escape(tr('Rounding floors: the large batch alone'))}</h2><table><tr><th></th>"
        f"<th class='n'>{escape(tr('against {reference}').format(reference=report.reference))}</th>"
        f"<th class='n'>{escape(tr('same order'))}</th>"
        f"<th class='n'>{escape(tr('reversed order'))}</th></tr>"
        f"{floors}</table></section>"
    )


def _remarks(report: VerifyReport, tr: sentences.Translate) -> str:
    if not report.remarks:
        return ""
    rows = "".join(f"<p>{escape(sentences.remark(entry, tr))}</p>" for entry in report.remarks)
    return f"<section><h2>{escape(tr('Remarks'))}</h2>{rows}</section>"


def save(report: VerifyReport, path: Path, tr: sentences.Translate = sentences.english) -> None:
    """Write a certificate: JSON where the name ends so, else a page. Raises UsageError."""
    is_json = path.suffix.lower() == ".json"
    content = encode(report) + b"\n" if is_json else page(report, tr).encode("utf-8")
    try:
        expanded(path).write_bytes(content)
    except OSError as error:
        message = f"The certificate cannot be saved as {path}: {error.strerror}. Choose another place."
        raise UsageError(message) from error
