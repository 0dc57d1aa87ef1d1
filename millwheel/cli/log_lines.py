"""Log events as lines for a terminal.

::

    09:15:25Z started  generation=1 intervals=3 pipeline=zeitgeist worker=bec7c335
    09:15:26Z warning: fsync_is_off
              hint: a crash of the machine may damage the store
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, MutableMapping
from textwrap import wrap
from typing import Any

from millwheel.cli.printing import escaped
from millwheel.cli.terminal import USUAL, styled, width_of

PROSE_SIGNS = 24
"""A text of more signs, with spaces, stands in lines of its own."""

STYLE_OF = {"warning": "warning", "error": "error", "critical": "error", "debug": "note"}


def render(logger: object, method: str, event: MutableMapping[str, Any]) -> str:
    """A renderer of structlog, for standard error."""
    width = width_of(sys.stderr) or USUAL.columns
    return "\n".join(log_lines(event, width))


def log_lines(event: Mapping[str, Any], width: int) -> Iterator[str]:
    """The lines of one event. Only a word that is longer than the width makes a longer line."""
    fields = dict(event)
    time, level = fields.pop("timestamp", ""), fields.pop("level", "info")
    name, trace = str(fields.pop("event", "")), fields.pop("exception", None)
    texts = {key: _text(value) for key, value in fields.items()}
    prose = {key: text for key, text in texts.items() if _is_prose(text)}
    short = [f"{key}={_quoted(text)}" for key, text in texts.items() if key not in prose]
    style = STYLE_OF.get(level)
    said = name if level == "info" else f"{level}: {name}"
    indent = " " * (len(time) + 1)
    first, *others = _folded(f"{escaped(said)}  {' '.join(short)}".rstrip(), width, indent)
    yield f"{styled(time, 'note', err=True)} {_begun(first, said, style)}"
    yield from (f"{indent}{line}" for line in others)
    for key, text in prose.items():
        for number, line in enumerate(_folded(f"{key}: {text}", width, indent)):
            heading = "" if number else styled(f"{key}:", "note", err=True)
            yield f"{indent}{heading}{line if number else line.removeprefix(f'{key}:')}"
    if trace is not None:
        yield str(trace).rstrip()


def _begun(line: str, said: str, style: str | None) -> str:
    """A first line with a style for its event."""
    if not line.startswith(said):
        return line  # it is folded within the event
    return styled(said, style or "heading", err=True) + line.removeprefix(said)


def _folded(text: str, width: int, indent: str) -> list[str]:
    room = max(width - 1 - len(indent), 1)
    lines = wrap(text, room, break_long_words=False, break_on_hyphens=False)
    return lines or [""]


def _text(value: object) -> str:
    if isinstance(value, list | tuple):
        return escaped(", ".join(map(str, value))) or "none"
    return escaped(str(value))


def _is_prose(text: str) -> bool:
    return len(text) > PROSE_SIGNS and " " in text


def _quoted(text: str) -> str:
    return repr(text) if " " in text or not text else text
