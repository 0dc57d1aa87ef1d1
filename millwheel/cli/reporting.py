"""Errors, exit codes and the log of all commands.

An error is a message on standard error, with the line of user code that raised it, and an exit code
of its kind (`millwheel.errors`). Standard output carries results only.
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
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import typer

from millwheel.cli.printing import say, sentence_lines
from millwheel.cli.terminal import styled, width_of
from millwheel.core.distribution import check_alone
from millwheel.core.suggestion import with_suggestion
from millwheel.errors import InvariantBroken, MillwheelError, UsageError

FORMS = ("text", "json")
LEVELS = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
}

ERROR = "error: "

REPETITIVE = ("psycopg.pool", "uvicorn.error")
"""Libraries that repeat few kinds of warnings many times, such as a pool that waits."""
REPEAT_SECONDS = 5.0
"""Shortest time between two lines of a kind."""


@contextlib.contextmanager
def reporting(*, debug: bool, places: int = 1) -> Iterator[None]:
    """Report errors, and exit with their codes.

    Args:
        places: most lines of user code that are shown of an error's traceback, the innermost ones.
    """
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminated)
    try:
        check_alone()
        yield
        sys.stdout.flush()
    except KeyboardInterrupt:
        typer.echo("interrupted", err=True)
        raise typer.Exit(130) from None
    except MillwheelError as error:
        report(error, debug=debug, places=places)
        raise typer.Exit(error.exit_code) from None
    except BrokenPipeError:  # `millwheel sql … | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        raise typer.Exit(128 + signal.SIGPIPE) from None
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        traceback.print_exc()
        print_error(
            f"this is a bug in millwheel: {type(error).__name__}: {error}. Please report it"
        )
        raise typer.Exit(InvariantBroken.exit_code) from None


def _terminated(number: int, frame: FrameType | None) -> None:
    raise SystemExit(128 + number)


def report(error: MillwheelError, *, debug: bool, places: int = 1) -> None:
    """Print an error with its lines of user code, the innermost first; a bug with its traceback."""
    if debug or isinstance(error, InvariantBroken):
        traceback.print_exception(error)
    print_error(str(error))
    for place in _users_places(error)[:places]:
        say(f"  at {place}", err=True)


def print_error(message: str) -> None:
    width = width_of(sys.stderr)
    parts = f"{ERROR}{message}".split("\n")
    first, *others = (line for part in parts for line in sentence_lines(part, width))
    typer.echo(styled(ERROR, "error", err=True) + first.removeprefix(ERROR), err=True)
    for line in others:
        typer.echo(line, err=True)


def _users_places(error: BaseException | None) -> list[str]:
    """The lines of user code in an error's traceback, or in that of its nearest cause with any;
    the innermost first."""
    while error is not None:
        frames = [
            frame
            for frame in traceback.extract_tb(error.__traceback__)
            # A frame of compiled code may name a file that does not exist.
            if not frame.filename.startswith(foreign_paths()) and Path(frame.filename).is_file()
        ]
        if frames:
            return [_shown(frame) for frame in reversed(frames)]
        error = error.__cause__
    return []


def _shown(frame: traceback.FrameSummary) -> str:
    line = linecache.getline(frame.filename, frame.lineno or 0).strip()
    return f"{frame.filename}:{frame.lineno} in {frame.name}" + (f": {line}" if line else "")


@functools.cache
def foreign_paths() -> tuple[str, ...]:
    """Path prefixes of code that is not the user's."""
    ours = Path(__file__).parent.parent
    libraries = (sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib"))
    commands = sysconfig.get_path("scripts")
    return ("<", f"{ours}{os.sep}", *(f"{path}{os.sep}" for path in (*libraries, commands)))


class _Stderr:
    """The current `sys.stderr`, which a progress bar replaces; a closed pipe is ignored."""

    def write(self, text: str) -> int:
        with contextlib.suppress(BrokenPipeError):
            return sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(BrokenPipeError):
            sys.stderr.flush()


class ToStructlog(logging.Handler):
    """Sends the warnings of libraries to structlog.

    Those of `REPETITIVE` with the same template are logged at most every `REPEAT_SECONDS`, with the
    number `suppressed` in between.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._logged: dict[str, float] = {}
        self._suppressed: Counter[str] = Counter()

    def emit(self, record: logging.LogRecord) -> None:
        import structlog

        log, level, text = structlog.get_logger(record.name), record.levelno, record.getMessage()
        if record.name not in REPETITIVE or level >= logging.ERROR:
            log.log(level, text)
            return
        template, now = str(record.msg), self._clock()
        logged = self._logged.get(template)
        if logged is not None and now - logged < REPEAT_SECONDS:
            self._suppressed[template] += 1
            return
        self._logged[template] = now
        suppressed = self._suppressed.pop(template, 0)
        log.log(level, text, **({"suppressed": suppressed} if suppressed else {}))


def configure_log(form: str | None = None, level: str | None = None) -> None:
    """Log to standard error. None: by the environment variable, or the default."""
    import structlog

    from millwheel.cli.log_lines import render

    terminal = sys.stderr.isatty()
    form = _one_of(form, "MILLWHEEL_LOG_FORMAT", FORMS) or ("text" if terminal else "json")
    level = _one_of(level, "MILLWHEEL_LOG_LEVEL", LEVELS) or "info"
    for_reader = form == "text" and terminal
    renderer: Any = structlog.processors.JSONRenderer(default=str)
    if form == "text":
        renderer = render if for_reader else structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="%H:%M:%SZ" if for_reader else "iso", utc=True),
            *([structlog.processors.format_exc_info] if for_reader or form == "json" else []),
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        # One write a line: workers may share a file, and `print` writes the line feed by itself.
        logger_factory=structlog.WriteLoggerFactory(file=_Stderr()),  # type: ignore[arg-type]
    )
    logging.basicConfig(level=logging.WARNING, handlers=[ToStructlog()])


def _one_of(given: str | None, variable: str, known: Collection[str]) -> str | None:
    value = given or os.environ.get(variable) or None
    if value is not None and value not in known:
        message = f"{variable} must be one of {', '.join(known)}, not {value!r:.40}"
        raise UsageError(with_suggestion(message, value, known))
    if given:
        os.environ[variable] = given  # for processes that the command starts
    return value
