"""Charts as PNG files, if matplotlib is installed (the extra ``bench``)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bench.report.model import Chart, Line

WIDTH_INCHES, HEIGHT_INCHES, DOTS = 8.0, 4.5, 120
COLORS = ("#1f5fa8", "#c8501e", "#3b8540", "#7a4a9e", "#8a6d1c", "#b03060")
QUIET = "#666666"


def can_draw() -> bool:
    """Whether matplotlib is installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        return False
    return True


def draw(chart: Chart, directory: Path) -> Path:
    """Write a chart as a PNG file, and return its path."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    height = max(HEIGHT_INCHES, 1.2 + 0.36 * len(chart.bars))
    figure = Figure(figsize=(WIDTH_INCHES, height), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(chart.title, loc="left", fontsize=12)
    axes.set_xlabel(chart.x)
    axes.set_ylabel(chart.y)
    axes.spines[["top", "right"]].set_visible(False)
    if chart.bars:
        _bars(axes, chart)
    else:
        _lines(axes, chart)
    path = directory / f"{chart.name}.png"
    figure.savefig(path, dpi=DOTS)
    return path


def _lines(axes: Any, chart: Chart) -> None:
    """Draw lines, each with its label."""
    axes.grid(visible=True, color="#dddddd", linewidth=0.8)
    many = any(len(line.xs) > 50 for line in chart.lines)
    for color, line in zip(COLORS, chart.lines, strict=False):
        axes.plot(line.xs, line.ys, color=color, linewidth=1.2 if many else 2.0,
                  marker=None if many else "o", markersize=4)  # fmt: skip
    _scales(axes, chart)
    if len({line.xs[-1] for line in chart.lines}) > 1:
        _label_above(axes, chart)
    else:
        _label_ends(axes, chart)
    if chart.mark is not None:
        label, level = chart.mark
        axes.axhline(level, color=QUIET, linestyle="--", linewidth=1)
        axes.annotate(label, (0.01, level), xycoords=("axes fraction", "data"),
                      xytext=(0, 3), textcoords="offset points", color=QUIET,
                      fontsize=8)  # fmt: skip


def _scales(axes: Any, chart: Chart) -> None:
    """Set up both axes: integer ticks on x, zero included on y, unless logarithmic."""
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter

    xs = [x for line in chart.lines for x in line.xs]
    if chart.log_x and min(xs) > 0:
        axes.set_xscale("log")
    elif chart.log_x:
        axes.set_xscale("symlog", linthresh=min(x for x in xs if x > 0), linscale=0.5)
    else:
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if chart.log_y:
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_minor_formatter(NullFormatter())
    else:
        axes.set_ylim(0, 1.08 * max(y for line in chart.lines for y in line.ys))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")


def _label_above(axes: Any, chart: Chart) -> None:
    """Label lines that follow each other above them."""
    for color, line in zip(COLORS, chart.lines, strict=False):
        axes.annotate(
            line.label, ((line.xs[0] + line.xs[-1]) / 2, 1.0), xycoords=("data", "axes fraction"),
            color=color, ha="center", va="top", fontsize=9,
        )  # fmt: skip


def _label_ends(axes: Any, chart: Chart) -> None:
    """Label lines over the same x range at their ends."""
    for color, line, place in zip(COLORS, chart.lines, _apart(axes, chart), strict=False):
        axes.annotate(
            line.label, (line.xs[-1], line.ys[-1]), xytext=(1.01, place),
            textcoords="axes fraction", color=color, va="center", fontsize=9,
        )  # fmt: skip


def _apart(axes: Any, chart: Chart) -> list[float]:
    """Return the height of each label as a fraction of the axis.

    Labels are at the ends of their lines, moved apart so that they do not overlap.
    """
    least = 0.06
    ends = [_height(axes, line) for line in chart.lines]
    places = dict[int, float]()
    below = -least
    for number in sorted(range(len(ends)), key=ends.__getitem__):
        below = places[number] = max(ends[number], below + least)
    over = max(0.0, below - 1.0)
    return [places[number] - over for number in range(len(ends))]


def _height(axes: Any, line: Line) -> float:
    shown = axes.transData.transform((line.xs[-1], line.ys[-1]))
    return float(axes.transAxes.inverted().transform(shown)[1])


def _bars(axes: Any, chart: Chart) -> None:
    """Draw horizontal bars, the first on top, each with its value at its end."""
    names = [name for name, _ in chart.bars]
    values = [value for _, value in chart.bars]
    axes.barh(range(len(names)), values, color=COLORS[0], height=0.65)
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    if chart.log_x:
        axes.set_xscale("log")
        axes.set_xlim(min(values) / 2, max(values) * 3)
    else:
        axes.set_xlim(0, max(values) * 1.15)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.10g}")
    for place, value in enumerate(values):
        text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
        axes.annotate(text, (value, place), xytext=(4, 0), textcoords="offset points",
                      va="center", fontsize=9)  # fmt: skip
    if chart.mark is not None:
        label, level = chart.mark
        axes.axvline(level, color=QUIET, linestyle="--", linewidth=1)
        axes.annotate(label, (level, 1.0), xycoords=("data", "axes fraction"), xytext=(3, -2),
                      textcoords="offset points", va="top", color=QUIET, fontsize=8)  # fmt: skip
