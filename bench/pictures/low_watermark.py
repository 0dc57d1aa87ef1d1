"""Event time against arrival: payments, the low watermark behind them, windows that it closes."""

from __future__ import annotations

from datetime import datetime, timedelta

from bench.pictures.svg import card, keyframes, number, path, rectangle, text
from bench.pictures.tutorial_run import TutorialRun

WIDTH, HEIGHT = 700, 500
LEFT, RIGHT, TOP, BOTTOM = 76, 540, 66, 440
"""The edges of the plot. Right of it, up to `END`, are the results of the windows."""
END = WIDTH - 14
WINDOW = timedelta(minutes=1)
BELOW, ABOVE = timedelta(seconds=44), timedelta(seconds=9)
"""Event time that is shown below the first window, and above the newest payment."""
AFTER_NAME = 58
"""From the name of a window to the word behind it."""
DOT = 7.5
"""Radius of a payment."""

SECONDS = 17.0
"""Length of the animation, which repeats."""
FIRST, STEP = 0.6, 0.8
"""Seconds until the first payment, and from each payment to the next."""
BEGIN = 13.0
"""Second with which it begins: the whole picture is shown first, and then how it came about."""
CHANGE, FADE = 0.22, 0.5
"""Seconds that a change takes, and that the end takes."""

STYLE = """
.quiet { font-size: 16px; fill: var(--quiet) }
.name { font-size: 17px; font-weight: 600 }
.result { font-size: 16px; font-weight: 600; fill: var(--good) }
.level { font-size: 17px; font-weight: 600; fill: var(--water) }
.bad { font-size: 17px; font-weight: 600; fill: var(--bad) }
.grid { stroke: var(--grid); stroke-width: 1.5; fill: none }
.closed { fill: var(--good); opacity: .13 }
.water { fill: var(--water); opacity: .16 }
.line { stroke: var(--water); stroke-width: 3.5; stroke-linejoin: round; fill: none }
.gap { stroke: var(--water); stroke-width: 1.5; fill: none }
.dot { fill: var(--ink); stroke: var(--card); stroke-width: 2 }
.dot.late { fill: var(--bad) }
.dot.counted { fill: var(--good) }
.now { stroke: var(--quiet); stroke-width: 1.5; stroke-dasharray: 3 4; opacity: 0 }
.open { opacity: 0 }
@media (max-width: 480px) {
  .quiet, .result, .level, .bad { font-size: 19px }
}
"""


class Plot:
    """The places of the picture for one run."""

    def __init__(self, run: TutorialRun) -> None:
        self.run = run
        times = [arrival.at for arrival in run.arrivals]
        self.first = min(times).replace(second=0, microsecond=0)
        self.lowest, self.highest = self.first - BELOW, max(times) + ABOVE
        self.step = (RIGHT - LEFT) / (len(times) + 0.6)
        self.windows = [self.first + n * WINDOW for n in range(self.window_of(max(times)) + 1)]
        self.closing = [self._closing(window) for window in self.windows]
        """For each window the place of the payment that closes it."""

    def _closing(self, window: datetime) -> int | None:
        for place, arrival in enumerate(self.run.arrivals):
            if window in arrival.closed:
                return place
        return None

    def window_of(self, at: datetime) -> int:
        """The number of the window of an instant."""
        return (at - self.first) // WINDOW

    def x(self, place: int) -> float:
        """Where a payment is, by its place in the order of arrival, from 0."""
        return LEFT + self.step * (place + 0.8)

    def y(self, at: datetime) -> float:
        """Where an instant of event time is."""
        return BOTTOM - (at - self.lowest) / (self.highest - self.lowest) * (BOTTOM - TOP)

    def level(self) -> list[tuple[float, float]]:
        """The corners of the low watermark, which rises when a payment has arrived."""
        corners = [(self.x(0), float(BOTTOM))]
        for place, arrival in enumerate(self.run.arrivals):
            x, y = self.x(place), self.y(arrival.low_watermark)
            corners += [(x, corners[-1][1]), (x, y)]
        return [*corners, (RIGHT, corners[-1][1])]


def draw(run: TutorialRun) -> str:
    """The picture of a run, in which at least one window closes and one payment is late."""
    plot = Plot(run)
    late = next(arrival for arrival in run.arrivals if arrival.late)
    return card(
        (WIDTH, HEIGHT),
        title="The low watermark follows the payments and closes windows",
        description=(
            f"{len(run.arrivals)} payments by arrival, left to right, and event time, upwards. "
            f"The low watermark is a line {run.lateness.seconds} seconds below the newest of "
            "them. A window closes when the line passes its end. The payment of "
            f"{late.at:%H:%M:%S} arrives after that, and is late."
        ),
        style=STYLE,
        moving="\n".join(_motion(plot)),
        body=[*_axes(plot), *_windows(plot), *_level(plot), *_lateness(plot), *_payments(plot)],
    )


# -- elements ----------------------------------------------------------------------------------


def _axes(plot: Plot) -> list[str]:
    parts = [
        path([(LEFT, TOP - 14), (LEFT, BOTTOM), (RIGHT, BOTTOM)], "grid"),
        text(LEFT - 52, 40, "↑ event time: when it happened", "quiet"),
        text(RIGHT, BOTTOM + 34, "arrival: when it is read →", "quiet", "end"),
    ]
    for window in plot.windows:
        y = plot.y(window)
        parts += [
            path([(LEFT, y), (END, y)], "grid"),
            text(LEFT - 12, y + 6, f"{window:%H:%M}", "quiet", "end"),
        ]
    return parts


def _windows(plot: Plot) -> list[str]:
    parts = [text(RIGHT + 15, 40, "windows", "quiet")]
    for place, window in enumerate(plot.windows):
        top, bottom = plot.y(min(window + WINDOW, plot.highest)), plot.y(window)
        x, y = RIGHT + 15, (top + bottom) / 2
        closing = plot.closing[place]
        if closing is not None:
            payments = plot.run.arrivals[closing].closed[window]
            parts += [
                rectangle(LEFT, top, END - LEFT, bottom - top, f"closed w{place}"),
                text(x + AFTER_NAME, y, "closed", f"result r{place}"),
                text(x, y + 24, f"{payments} payments", f"result r{place}"),
            ]
        kind = "quiet" if closing is None else f"quiet open o{place}"
        parts += [
            text(x, y, f"{window:%H:%M}", "name"),
            text(x + AFTER_NAME, y, "open", kind),
        ]
    return parts


def _level(plot: Plot) -> list[str]:
    corners = plot.level()
    left = corners[0][0]
    return [
        '<g class="reveal">',
        path([*corners, (RIGHT, BOTTOM)], "water"),
        path(corners, "line"),
        text(left + 12, BOTTOM - 13, "low watermark: nothing older is expected", "level"),
        "</g>",
        path([(LEFT, TOP - 6), (LEFT, BOTTOM)], "now"),
    ]


def _lateness(plot: Plot) -> list[str]:
    """The distance of the line from the payment that closes the first window."""
    place = plot.closing[0]
    assert place is not None, "no window closes in this run"
    arrival = plot.run.arrivals[place]
    x, top, bottom = plot.x(place) + 15, plot.y(arrival.at), plot.y(arrival.low_watermark) - 3
    return [
        f'<g class="f{place}">',
        path([(x - 5, top), (x + 5, top)], "gap"),
        path([(x, top), (x, bottom)], "gap"),
        path([(x - 4, bottom - 7), (x, bottom), (x + 4, bottom - 7)], "gap"),
        text(x + 7, (top + bottom) / 2 + 6, f"{plot.run.lateness.seconds} s", "level"),
        "</g>",
    ]


def _payments(plot: Plot) -> list[str]:
    parts = list[str]()
    for place, arrival in enumerate(plot.run.arrivals):
        x, y, window = plot.x(place), plot.y(arrival.at), plot.window_of(arrival.at)
        at = f'<circle cx="{number(x)}" cy="{number(y)}" r="{number(DOT)}"'
        parts.append(f'{at} class="dot {"late " if arrival.late else ""}d{place}"/>')
        if arrival.late:
            parts.append(text(x + 14, y + 6, f"late: {arrival.at:%H:%M:%S}", f"bad f{place}"))
        elif plot.closing[window] is not None:
            parts.append(f'{at} class="dot counted r{window}"/>')
    return parts


# -- animation ---------------------------------------------------------------------------------


def _moment(place: int) -> float:
    """Seconds at which the payment of this place arrives."""
    return FIRST + STEP * place


def _appear(name: str, seconds: float, *steps: str) -> str:
    """From the first of the steps to the last one at a moment, and back at the end."""
    changes = {seconds + CHANGE * place: step for place, step in enumerate(steps)}
    end = {SECONDS - FADE: steps[-1], SECONDS: steps[0]}
    return keyframes(name, SECONDS, {0: steps[0]} | changes | end, BEGIN)


def _motion(plot: Plot) -> list[str]:
    pop = [f"opacity: {o}; transform: scale({s})" for o, s in ((0, 0.3), (1, 1.6), (1, 1))]
    rules = ["circle { transform-box: fill-box; transform-origin: center }"]
    for place, arrival in enumerate(plot.run.arrivals):
        rules.append(_appear(f"d{place}", _moment(place), *pop))
        if arrival.late or place == plot.closing[0]:
            rules.append(_appear(f"f{place}", _moment(place), "opacity: 0", "opacity: 1"))
    for place, closing in enumerate(plot.closing):
        if closing is not None:
            moment = _moment(closing) + CHANGE
            rules += [
                _appear(f"w{place}", moment, "opacity: 0", "opacity: .5", "opacity: .13"),
                _appear(f"r{place}", moment, "opacity: 0", "opacity: 1"),
                _appear(f"o{place}", moment, "opacity: 1", "opacity: 0"),
            ]
    return [*rules, *_sweep(plot)]


def _sweep(plot: Plot) -> list[str]:
    """The line is drawn while the present moves from the first payment to the right edge."""
    left = plot.x(0)
    end = FIRST + STEP * (RIGHT - left) / plot.step
    hidden, shown = "clip-path: inset(-9px 100% -9px 0)", "clip-path: inset(-9px 0 -9px 0)"
    before, after = (f"transform: translateX({number(x - LEFT)}px)" for x in (left, RIGHT))
    return [
        keyframes("reveal", SECONDS, {0: hidden, FIRST: hidden, end: shown, SECONDS: shown}, BEGIN),
        keyframes(
            "now",
            SECONDS,
            {
                0: f"opacity: 0; {before}",
                FIRST: f"opacity: .8; {before}",
                end: f"opacity: .8; {after}",
                end + CHANGE: f"opacity: 0; {after}",
                SECONDS: f"opacity: 0; {after}",
            },
            BEGIN,
        ),
    ]
