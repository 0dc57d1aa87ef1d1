"""Errors of the user's code under Spark, without the lines of Spark and Java around them."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path

from millwheel import errors
from millwheel.errors import MillwheelError, UserCodeError

OURS = str(Path(__file__).resolve().parents[1])
LIBRARIES = ("/pyspark/", "/py4j/", "/pyspark.zip/", "/py4j-", "/asyncio/")
"""Parts of paths of code that is not the user's."""
QUERY = "\n=== Streaming Query ==="
"""An error of a query continues with its offsets and its plan, over pages."""
HEAD = "Traceback (most recent call last):\n"
ENDS = ("SQLSTATE", "JVM stacktrace", "\tat ", "    at ")
"""Beginnings of lines after the text of an error of a Python worker."""
FRAMES = 8


@contextmanager
def user_error(what: str) -> Iterator[None]:
    """Turn errors of the block into millwheel's: that of a Spark task if there was one, otherwise a
    `UserCodeError` with the user's own lines."""
    try:
        yield
    except MillwheelError:
        raise
    except Exception as error:
        raise from_worker(error) or UserCodeError(f"{what} failed: {error_text(error)}") from error


def from_worker(error: Exception) -> MillwheelError | None:
    from pyspark.errors import PySparkException

    if not isinstance(error, PySparkException):
        return None
    # The traceback of its cause comes first, which may be one of ours as well.
    before, mark, rest = ("\n" + _text(error)).rpartition("\nmillwheel.errors.")
    found = re.match(r"(\w+): (.+)", rest, re.DOTALL) if mark else None
    kind = getattr(errors, found[1], None) if found else None
    if found is None or not (isinstance(kind, type) and issubclass(kind, MillwheelError)):
        return None
    message = re.split(r"\n\s*(?:at |SQLSTATE|JVM stacktrace)", found[2])[0]
    lines = _own_lines(before) if issubclass(kind, UserCodeError) else []
    return kind("\n".join([message.strip(), *lines]))


def error_text(error: Exception) -> str:
    text = _text(error)
    if HEAD in text:
        body = text.rpartition(HEAD)[2].splitlines()
        frames_end = next((n for n, line in enumerate(body) if line[:1].strip()), len(body))
        message_lines = takewhile(lambda line: not line.startswith(ENDS), body[frames_end:])
        return "\n".join(
            ["\n".join(message_lines).strip(), *_own_lines("\n".join(body[:frames_end]))]
        )
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if _is_own(frame.filename)]
    lines = [
        f"  {f.filename}:{f.lineno} in {f.name}: {f.line or ''}".rstrip() for f in own[-FRAMES:]
    ]
    return "\n".join([f"{type(error).__name__}: {text}", *_cause(error), *lines])


def _own_lines(body: str) -> list[str]:
    found = []
    for file, line, name, code in re.findall(
        r'^\s*File "([^"]+)", line (\d+), in ([^\n]+)\n\s*([^\n]*)', body, re.MULTILINE
    ):
        if _is_own(file):
            found.append(f"  {file}:{line} in {name}: {code}".rstrip())
    # Code that has failed runs again to find its record: then each line is there twice.
    return list(dict.fromkeys(found))[-FRAMES:]


def _is_own(file: str) -> bool:
    return not file.startswith((OURS, "<")) and not any(part in file for part in LIBRARIES)


def _text(error: Exception) -> str:
    return _whole_text(error).partition("\n\tat ")[0]


def _cause(error: Exception) -> list[str]:
    """The innermost cause among Java's lines."""
    found = re.findall(r"^Caused by: (.+)$", _whole_text(error), re.MULTILINE)
    return [f"caused by {found[-1]}"] if found else []


def _whole_text(error: Exception) -> str:
    try:
        return str(error).partition(QUERY)[0]
    except Exception:  # py4j asks the JVM for the text, and the JVM may be gone
        return "the JVM ended before it could report the error"
