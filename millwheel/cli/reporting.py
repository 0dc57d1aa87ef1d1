"""How commands end, and what they say on the way: errors, exit codes, the log.

An error is one message on standard error, with the line of the user's code it came from if
there is one, and an exit code of its own (`millwheel.errors`). Tracebacks are for --debug
and for bugs. Standard output is for results alone.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import logging
import os
import signal
import sys
import sysconfig
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any, ParamSpec

import typer

from millwheel.errors import InvariantBroken, MillwheelError

P = ParamSpec("P")

REPETITIVE = "psycopg.pool"
"""Whose warnings come in great numbers; there are few kinds of them."""
REPEAT_SECONDS = 5.0
"""Between two of a kind that are told."""


def command(function: Callable[P, None]) -> Callable[P, None]:
    """A command that reports its errors and ends with their exit codes."""

    @functools.wraps(function)
    def reported(*args: P.args, **kwargs: P.kwargs) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, _terminated)
        configure_log()
        debug = bool(kwargs.get("debug"))
        try:
            function(*args, **kwargs)
            sys.stdout.flush()
        except KeyboardInterrupt:
            typer.echo("interrupted", err=True)
            raise typer.Exit(130) from None
        except MillwheelError as error:
            tell(error, debug=debug)
            raise typer.Exit(error.exit_code) from None
        except BrokenPipeError:  # `millwheel sql … | head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            raise typer.Exit(128 + signal.SIGPIPE) from None
        except (typer.Exit, typer.Abort):
            raise
        except Exception as error:
            traceback.print_exc()
            say(f"this is a bug of millwheel: {type(error).__name__}: {error}. Please report it")
            raise typer.Exit(InvariantBroken.exit_code) from None

    return reported


def _terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def tell(error: MillwheelError, *, debug: bool) -> None:
    """Say what went wrong; a bug of ours with its traceback."""
    if debug or isinstance(error, InvariantBroken):
        traceback.print_exception(error)
    say(str(error))
    place = _users_place(error)
    if place is not None:
        typer.echo(f"  at {place}", err=True)


def say(message: str) -> None:
    """An error's message on standard error."""
    typer.secho("error: ", fg="red", bold=True, nl=False, err=True)
    typer.echo(message, err=True)


def _users_place(error: BaseException | None) -> str | None:
    """The line of the user's code that an error came from."""
    while error is not None:
        for frame in reversed(traceback.extract_tb(error.__traceback__)):
            # A frame of compiled code names a file that is not there.
            if not frame.filename.startswith(_not_the_users()) and Path(frame.filename).is_file():
                line = linecache.getline(frame.filename, frame.lineno or 0).strip()
                return f"{frame.filename}:{frame.lineno} in {frame.name}" + (
                    f": {line}" if line else ""
                )
        error = error.__cause__
    return None


@functools.cache
def _not_the_users() -> tuple[str, ...]:
    ours = Path(__file__).parent.parent
    libraries = (sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    commands = sysconfig.get_path("scripts")
    return ("<", f"{ours}{os.sep}", *(f"{path}{os.sep}" for path in (*libraries, commands)))


class _Stderr:
    """Standard error as it is at the moment: a progress bar stands in for it.

    If who read it is gone, there is nobody to tell: the work goes on.
    """

    def write(self, text: str) -> int:
        with contextlib.suppress(BrokenPipeError):
            return sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            sys.stderr.flush()


class ToStructlog(logging.Handler):
    """Libraries' warnings go where ours go.

    Those of `REPETITIVE` are told once in a while, with how many like it were left `untold` since: a pool
    that waits for Postgres tries to connect several times a second. What differs in its values alone is alike.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._told: dict[str, float] = {}
        """When each was told last, by its text without values."""
        self._untold: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        import structlog

        log, level, text = structlog.get_logger(record.name), record.levelno, record.getMessage()
        if record.name != REPETITIVE or level >= logging.ERROR:
            log.log(level, text)
            return
        alike, now = str(record.msg), self._clock()
        told = self._told.get(alike)
        if told is not None and now - told < REPEAT_SECONDS:
            self._untold[alike] += 1
            return
        self._told[alike] = now
        untold = self._untold.pop(alike, 0)
        log.log(level, text, **({"untold": untold} if untold else {}))


def configure_log() -> None:
    """Lines for people on a terminal, JSON lines elsewhere; to standard error, either way."""
    import structlog

    terminal = sys.stderr.isatty()
    renderer: Any = (
        structlog.dev.ConsoleRenderer()
        if terminal
        else structlog.processors.JSONRenderer(default=str)
    )
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            *([] if terminal else [structlog.processors.format_exc_info]),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.PrintLoggerFactory(file=_Stderr()),  # type: ignore[arg-type]
    )
    logging.basicConfig(level=logging.WARNING, handlers=[ToStructlog()])
