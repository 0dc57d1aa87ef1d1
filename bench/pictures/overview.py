"""The landing page: events come in, workers compute, Postgres keeps everything."""

from __future__ import annotations

from bench.pictures.svg import card, keyframes, path, rectangle, text

WIDTH, HEIGHT = 690, 344
SOURCES = ("your tables", "Kafka", "HTTP", "files")
RESULTS = ("tables", "Kafka", "Spark", "files")
WORKERS = (("worker 1", "keys A to M"), ("worker 2", "keys N to Z"))
ALL_KEYS, KILLED = "keys A to Z", "kill -9"
COMMITTED = ("state", "timers", "output", "your rows")

PILL_WIDTH, PILL_HEIGHT, PILL_STEP = 120, 34, 44
TOP = 30
LEFT, RIGHT = 24, WIDTH - 24 - PILL_WIDTH
WORKER_LEFT, WORKER_WIDTH, WORKER_HEIGHT, WORKER_STEP = 212, 266, 74, 94
CENTER = WORKER_LEFT + WORKER_WIDTH / 2
STORE_TOP, STORE_HEIGHT = 248, 72

SECONDS = 11.0
"""Length of the animation, which repeats."""
ALIVE, DEAD, CHANGE = 4.0, 9.0, 0.3
"""Seconds at which worker 2 is killed, at which it is started again, and that a change takes."""

STYLE = """
.pill { fill: none; stroke: var(--edge); stroke-width: 1.5; rx: 17px }
.worker { fill: var(--water); fill-opacity: .1; stroke: var(--water); stroke-width: 2; rx: 12px }
.store { fill: var(--good); fill-opacity: .1; stroke: var(--good); stroke-width: 2; rx: 12px }
.arrow { stroke: var(--quiet); stroke-width: 1.8; fill: none }
.plain { font-size: 16px }
.name { font-size: 17px; font-weight: 600 }
.quiet { font-size: 15px; fill: var(--quiet) }
.bad { font-size: 17px; font-weight: 600; fill: var(--bad) }
.killed { opacity: 0 }
.good { font-size: 17px; font-weight: 600; fill: var(--good) }
@media (max-width: 480px) {
  .plain, .name, .quiet, .bad, .good { font-size: 20px }
}
"""


def draw() -> str:
    """The picture."""
    middle = TOP + (3 * PILL_STEP + PILL_HEIGHT) / 2
    body = [
        *_pills(LEFT, SOURCES),
        *_pills(RIGHT, RESULTS),
        *_arrow(LEFT + PILL_WIDTH + 14, middle, WORKER_LEFT - 16, middle),
        *_arrow(WORKER_LEFT + WORKER_WIDTH + 16, middle, RIGHT - 14, middle),
    ]
    for place, (name, keys) in enumerate(WORKERS):
        y = TOP - 4 + WORKER_STEP * place
        body += [
            '<g class="mortal">' if place else "<g>",
            rectangle(WORKER_LEFT, y, WORKER_WIDTH, WORKER_HEIGHT, "worker"),
            text(CENTER, y + 31, f"{name}: your Python", "name", "middle"),
            text(CENTER, y + 55, keys, "quiet share", "middle"),
            "</g>",
        ]
        after = (KILLED, "bad") if place else (ALL_KEYS, "plain")
        body.append(text(CENTER, y + 55, after[0], f"{after[1]} killed", "middle"))
    body += [
        *_arrow(CENTER, 200, CENTER, STORE_TOP - 7),
        text(CENTER + 14, 229, "one transaction", "quiet"),
        rectangle(LEFT, STORE_TOP, WIDTH - 2 * LEFT, STORE_HEIGHT, "store"),
        text(LEFT + 20, STORE_TOP + 42, "Postgres", "good"),
    ]
    for place, name in enumerate(COMMITTED):
        body.append(text(LEFT + 152 + 128 * place, STORE_TOP + 42, name, "plain"))
    return card(
        (WIDTH, HEIGHT),
        title="millwheel between your events and your tables",
        description=(
            "Events come from tables, Kafka, HTTP or files. Workers share the keys and run your "
            "Python. State, timers, output and your own rows are committed to Postgres in one "
            "transaction. Results go to tables, Kafka, Spark or files."
        ),
        style=STYLE,
        moving=_motion(),
        body=body,
    )


def _motion() -> str:
    """Worker 2 is killed: worker 1 takes its keys, until it is started again."""
    shown, hidden = "opacity: 1", "opacity: 0"
    return "\n".join(
        keyframes(
            name,
            SECONDS,
            {0: before, ALIVE: before, ALIVE + CHANGE: during, DEAD: during}
            | {DEAD + CHANGE: before, SECONDS: before},
        )
        for name, before, during in (
            ("mortal", shown, "opacity: .2"),
            ("share", shown, hidden),
            ("killed", hidden, shown),
        )
    )


def _pills(x: float, names: tuple[str, ...]) -> list[str]:
    parts = list[str]()
    for place, name in enumerate(names):
        y = TOP + PILL_STEP * place
        parts += [
            rectangle(x, y, PILL_WIDTH, PILL_HEIGHT, "pill"),
            text(x + PILL_WIDTH / 2, y + 22, name, "plain", "middle"),
        ]
    return parts


def _arrow(x: float, y: float, to_x: float, to_y: float) -> list[str]:
    right, down = (6, 0) if y == to_y else (0, 6)
    head = [
        (to_x - right - down, to_y - down - right),
        (to_x, to_y),
        (to_x - right + down, to_y - down + right),
    ]
    return [path([(x, y), (to_x, to_y)], "arrow"), path(head, "arrow")]
