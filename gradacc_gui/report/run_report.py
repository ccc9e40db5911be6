"""A run as one HTML page without anything to load: `gradacc report RUN`, and a button on the Live page.

    RunDirectory ─ recipe, journal, incidents ─▶ sections of HTML ─▶ one page

What stands there is what the window shows, from the same places: words, target lines, compared results.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from typing import Final

from gradacc_gui.assets import asset
from gradacc_gui.comparing.compared_runs import ComparedRun, RunGroup, results_of
from gradacc_gui.report.svg_lines import COLOURS, SvgChart, SvgLine, has_values, svg_of
from gradacc_gui.run.as_run import published_beside
from gradacc_gui.run.numbers import clock_s, count, real
from gradacc_gui.run.target_lines import VERDICTS, target_lines
from gradacc_gui.session.runs import open_journal, summarise
from gradacc_gui.store import RunStore, View
from gradacc_gui.words import line, tr
from trainer_backend.errors import RunDirectoryError
from trainer_backend.protocol import (
    DeviceSampled,
    EvaluationMeasured,
    Event,
    HostSampled,
    NoiseScaleMeasured,
    OptimizerStepMeasured,
    RunStarted,
)
from trainer_backend.published import Difference
from trainer_backend.recipe import read_document
from trainer_backend.run_directory import RunDirectory

PIXELS: Final = 600
"""Groups of neighbouring steps that a chart draws."""
AROUND_A_CHANGE: Final = 50
"""Optimizer steps before and after a change of N whose medians are told."""
JOULES_PER_KWH: Final = 3.6e6
GIB: Final = 1024**3
SILENT_LOOKS: Final = 3
"""Looks that bring nothing: a run that no trainer has written into."""
INCIDENT_BYTES: Final = 64 * 1024


def write_report(run: RunDirectory, path: Path) -> None:
    """Write the page. Raises RunDirectoryError where the run cannot be read, or the place takes no file."""
    text = report_page(run)
    try:
        path.write_text(text, "utf-8")
    except OSError as error:
        message = f"The report cannot be written to {path}: {error.strerror or error}. Choose another place."
        raise RunDirectoryError(message) from error


def report_page(run: RunDirectory) -> str:
    """The whole page. Raises RunDirectoryError for a run that cannot be read."""
    summary = summarise(run)
    compared = ComparedRun(run)
    store = compared.store
    try:
        silent = 0
        while not store.caught_up and not store.problem and silent < SILENT_LOOKS:
            silent = 0 if compared.poll(1.0) else silent + 1
        if store.problem:
            raise RunDirectoryError(store.problem)
        title = summary.name or run.id
        parts = [
            f"<h1>{escape(title)}</h1>",
            f'<p class="muted">{escape(_subtitle(run, store, str(summary.state)))}</p>',
            *_targets(run, store),
            *_results(compared, store),
            *_published(run, store),
            *_charts(run, store),
            *_changes(store),
            *_incidents(run),
            *_decisions(run),
            *_environment(store.started),
            *_configuration(run),
        ]
    finally:
        compared.close()
    body = "\n".join(parts)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width">'
        f"<style>{asset('report.css').read_text('utf-8')}</style></head>\n<body>\n{body}\n</body></html>\n"
    )


def _subtitle(run: RunDirectory, store: RunStore, state: str) -> str:
    began = store.so_now.first_started_at
    steps, samples = store.extent("steps")[1], store.extent("samples")[1]
    parts = [
        tr("{id}, {state} at step {steps} ({samples} samples)").format(
            id=run.id, state=state, steps=count(int(steps)), samples=count(int(samples))
        )
    ]
    if began is not None:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(began))
        parts += [
            tr("begun {when}").format(when=when),
            tr("active for {time}").format(time=clock_s(store.extent("time")[1])),
        ]
    return "; ".join(parts) + "."


# ------------------------------------------------------------------------------- HTML's pieces


def _section(title: str, parts: Iterable[str]) -> Iterator[str]:
    """A heading and what stands under it; nothing where there is nothing."""
    found = list(parts)
    if found:
        yield f"<h2>{escape(title)}</h2>"
        yield from found


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Cells are HTML already; `numbers`: columns that are set to the right."""

    def of(tag: str, cells: Sequence[str]) -> str:
        return "".join(
            f"<{tag}{' class=number' if place in numbers else ''}>{cell}</{tag}>"
            for place, cell in enumerate(cells)
        )

    body = "".join(f"<tr>{of('td', row)}</tr>" for row in rows)
    head = of("th", [escape(one) for one in heads])
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


# ----------------------------------------------------------------------------------- sections


def _targets(run: RunDirectory, store: RunStore) -> Iterator[str]:
    rows = []
    for target in target_lines(run.config(), store.so_now):
        word = tr("missed, went on") if target.overridden else tr(VERDICTS[target.verdict])
        rows.append(
            (
                escape(target.quantity),
                escape(target.bound),
                escape(target.reached or "–"),
                f'<span class="{target.verdict}">{escape(word)}</span>',
                f'<span class="muted">{escape(target.evidence)}</span>',
            )
        )
    heads = (tr("Target"), tr("Bound"), tr("Reached"), tr("Verdict"), tr("Evidence"))
    return _section(tr("Targets"), [_table(heads, rows)] if rows else [])


def _results(compared: ComparedRun, store: RunStore) -> Iterator[str]:
    group = RunGroup((compared,), compared.name)
    rows = [(escape(result.title), escape(result.text)) for result in results_of(group)]
    rows += [(escape(title), escape(text)) for title, text in _costs(compared.run, store)]
    return _section(tr("Results"), [_table((tr("Quantity"), tr("Value")), rows, numbers=(1,))])


def _costs(run: RunDirectory, store: RunStore) -> Iterator[tuple[str, str]]:
    """Energy and money of the whole run, all attempts; what is not measured is said."""
    joules: float | None = None
    if run.journal_path.is_file():
        with open_journal(run) as reader:
            joules = reader.energy_joules()
    steps, tokens = store.extent("steps")[1], store.extent("tokens")[1]
    if joules is None:
        yield tr("Energy"), tr("not measured")
    else:
        yield tr("Energy"), f"{real(joules / JOULES_PER_KWH)} kWh"
        if steps:
            yield tr("Energy per optimizer step"), f"{real(joules / steps)} J"
        if tokens:
            yield tr("Energy per million tokens"), f"{real(joules / tokens * 1e6 / JOULES_PER_KWH)} kWh"
    config = run.config()
    if config is None or (config.prices.per_hour is None and config.prices.per_kwh is None):
        return
    prices = config.prices
    if prices.per_kwh is not None and joules is None:
        yield tr("Money"), tr("not known: the price is per kWh, and energy is not measured")
        return
    hours = store.extent("time")[1] / 3600
    spent = (prices.per_hour or 0.0) * hours + (prices.per_kwh or 0.0) * (joules or 0.0) / JOULES_PER_KWH
    yield tr("Money"), f"{spent:,.2f} {prices.currency}".strip()


def _published(run: RunDirectory, store: RunStore) -> Iterator[str]:
    config = run.config()
    measured = store.latest.get(EvaluationMeasured)
    assert measured is None or isinstance(measured, EvaluationMeasured)
    found: list[Difference] = published_beside(config, store.so_now.settings, measured)
    rows = [
        (escape(one.title), escape(one.published), escape(one.here), "" if one.same else escape("≠"))
        for one in found
    ]
    source = "" if config is None else config.published.source
    parts = [f'<p class="muted">{escape(source)}</p>'] if source and rows else []
    heads = (tr("Setting or result"), tr("Published"), tr("This run"), "")
    return _section(tr("Published beside this run"), [*parts, _table(heads, rows)] if rows else [])


def _charts(run: RunDirectory, store: RunStore) -> Iterator[str]:
    last = max(store.extent("steps")[1], 1.0)

    def data(title: str, kind: type[Event], field: str) -> SvgLine:
        return SvgLine(title, store.items(kind, field, View("steps", 0.0, last, PIXELS)))

    def target(key: str) -> float | None:
        value = run.recipe_value(f"targets.{key}")
        return float(value) if isinstance(value, int | float) else None

    step = OptimizerStepMeasured
    charts = (
        SvgChart(
            title=tr("Loss"), unit="", target=target("validation_loss"),
            lines=(data(tr("training"), step, "loss"), data(tr("validation"), EvaluationMeasured, "loss")),
        ),
        SvgChart(
            title=tr("Throughput"), unit=tr("samples / s"), target=target("throughput"), from_zero=True,
            lines=(data(tr("samples / s"), step, "samples_per_s"),),
        ),
        SvgChart(
            title=tr("Step time"), unit="ms", scale=1e3, from_zero=True,
            target=None if (limit := target("step_time")) is None else 1e3 * limit,
            lines=(data(tr("step time"), step, "duration_s"),),
        ),
        SvgChart(
            title=tr("Memory"), unit="GiB", scale=1 / GIB, from_zero=True, target=target("peak_memory"),
            lines=(
                data(tr("allocated"), DeviceSampled, "torch_allocated_bytes"),
                data(tr("process"), HostSampled, "process_rss_bytes"),
            ),
        ),
        SvgChart(title=tr("Gradient norm"), unit="", lines=(data(tr("norm"), step, "gradient_norm"),)),
        SvgChart(
            title=tr("Learning rate"), unit="", lines=(data(tr("learning rate"), step, "learning_rate"),)
        ),
        SvgChart(
            title=tr("N"), unit=tr("micro-batches"), from_zero=True,
            lines=(data("N", step, "accumulation_steps"),),
        ),
        SvgChart(
            title=tr("Gradient noise scale"), unit=tr("samples"),
            lines=(
                data(tr("noise scale"), NoiseScaleMeasured, "noise_scale"),
                data(tr("effective batch"), NoiseScaleMeasured, "effective_batch"),
            ),
        ),
    )  # fmt: skip
    changes = [(mark.step - 0.5, f"N {mark.before} → {mark.after}") for mark in store.markers.n_changes]
    drawn = [_figure(chart, changes, last) for chart in charts if has_values(chart)]
    return _section(tr("Charts"), ['<div class="charts">', *drawn, "</div>"] if drawn else [])


def _figure(chart: SvgChart, changes: Sequence[tuple[float, str]], last: float) -> str:

    legend = " ".join(
        f'<span class="swatch" style="background:{COLOURS[place % len(COLOURS)]}"></span> {escape(one.title)}'
        for place, one in enumerate(chart.lines)
        if (one.data.finite > 0).any()
    )
    unit = f' <span class="muted">{escape(chart.unit)}</span>' if chart.unit else ""
    return (
        f"<div><h3>{escape(chart.title)}{unit}</h3>{svg_of(chart, changes, last)}"
        f'<div class="muted">{legend}</div></div>'
    )


def _changes(store: RunStore) -> Iterator[str]:
    """Each change of N with what was measured before and after it."""
    rows = []
    for mark in store.markers.n_changes:
        before = _means(store, mark.step - AROUND_A_CHANGE - 0.5, mark.step - 0.5)
        after = _means(store, mark.step - 0.5, mark.step + AROUND_A_CHANGE - 0.5)
        rows.append(
            (
                count(mark.step),
                f"{mark.before} → {mark.after}",
                escape(mark.asked_by),
                *(escape(f"{one} → {other}") for one, other in zip(before, after, strict=True)),
            )
        )
    heads = (tr("From step"), "N", tr("By"), tr("Loss"), tr("Samples / s"), tr("Step time"))
    note = tr("Means of the {count} optimizer steps before and after each change.").format(
        count=AROUND_A_CHANGE
    )
    parts = [_table(heads, rows), f'<p class="muted">{escape(note)}</p>'] if rows else []
    return _section(tr("Changes of N"), parts)


def _means(store: RunStore, low: float, high: float) -> tuple[str, str, str]:
    found = []
    for field in ("loss", "samples_per_s", "duration_s"):
        items = store.items(OptimizerStepMeasured, field, View("steps", max(0.0, low), high, PIXELS))
        inside = (items.x > low) & (items.x < high) & (items.finite > 0)
        finite = float(items.finite[inside].sum())
        found.append(float(items.total[inside].sum()) / finite if finite else None)
    loss, speed, seconds = found
    return real(loss), real(speed), "–" if seconds is None else f"{1e3 * seconds:.3g} ms"


def _incidents(run: RunDirectory) -> Iterator[str]:
    parts = []
    for path in sorted(run.path.glob("incidents/*")):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                text = file.read(INCIDENT_BYTES).decode("utf-8", "replace")
            parts.append(f"<h3>{escape(path.name)}</h3><pre>{escape(text)}</pre>")
    return _section(tr("Incidents"), parts)


def _decisions(run: RunDirectory) -> Iterator[str]:
    if not run.journal_path.is_file():  # no trainer has written yet
        return iter(())
    with open_journal(run) as reader:
        facts = reader.facts()
    rows = []
    for record in facts:
        said = line(record.event)  # type: ignore[arg-type]  # a fact, by its name
        if said is not None:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(record.at))
            detail = f' <span class="muted">{escape(said.detail)}</span>' if said.detail else ""
            rows.append(
                (when, f'<span class="{said.tone}">{escape(said.text)}</span>{detail}', escape(said.by))
            )
    heads = (tr("Time"), tr("What happened"), tr("By"))
    return _section(tr("What happened"), [_table(heads, rows)] if rows else [])


def _environment(started: RunStarted | None) -> Iterator[str]:
    if started is None:
        return iter(())
    rows = [
        (tr("Machine"), started.host),
        (tr("Devices"), ", ".join(device.name for device in started.devices)),
        (tr("Ranks"), count(started.world_size)),
        (tr("Precision"), started.precision),
        (tr("Parameters"), count(started.parameters)),
        (tr("Versions"), ", ".join(f"{name} {version}" for name, version in started.versions.items())),
        (tr("Source"), started.commit or "–"),
    ]
    escaped = [(escape(title), escape(text)) for title, text in rows]
    return _section(tr("Environment"), [_table(("", ""), escaped)])


def _configuration(run: RunDirectory) -> Iterator[str]:
    text = read_document(run.recipe_path).as_string()
    return _section(tr("Configuration"), [f"<pre>{escape(text)}</pre>"])
