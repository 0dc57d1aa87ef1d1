"""docs/reference/exit-codes.md and errors.md, from `millwheel.errors`."""

from __future__ import annotations

import inspect
import re
from itertools import groupby
from operator import attrgetter

from millwheel import errors
from millwheel.errors import MillwheelError
from tests.docs.reference.markdown import code, page, prose, table

MEANINGS = {
    0: ("the work is done", "nothing"),
    1: (
        "an operator's request was refused, or has failed; or `millwheel diff` has not found two "
        "pipelines equal",
        "the command says why; `millwheel log` lists requests",
    ),
    2: (
        "the command line or the pipeline's graph is wrong, or a connection pooler that does not "
        "keep sessions is in front of Postgres",
        "correct the part that the message names; a unit should not restart the worker",
    ),
    3: ("the schema is older than this code", "run `millwheel migrate`"),
    4: (
        "the deployed graph and this code do not agree; every difference is listed",
        "see [changing a pipeline](../howto/compute/change-deploy.md)",
    ),
    5: (
        "an input file is missing, was changed, or has a bad row; or a part file is shorter than "
        "its commits",
        'correct it, or set bad rows aside with `on_error="dead_letter"`; then start again',
    ),
    6: (
        "user code failed, also while its module was imported, or in a migration",
        "correct the code; nothing was acknowledged for this record",
    ),
    7: (
        "the store could not be reached for `Settings.store_patience_seconds`, refused a "
        "statement, or could not be started",
        "repair the database; a unit should restart the worker",
    ),
    8: (
        "other workers took over, or this worker was silent for so long that the store has "
        "forgotten it",
        "nothing; a unit should restart the worker",
    ),
    9: ("another worker sent data that breaks the protocol", "report it with both logs"),
    10: (
        "an operator's request was not carried out in time",
        "it may still be: `millwheel log`, and for intervals `millwheel intervals list --events`",
    ),
    11: (
        "a sink's file cannot be written: the disk is full or read-only, or the file is not the "
        "sink's",
        "make room or correct the folder, then start again",
    ),
    70: ("a bug of millwheel", "report it with the log"),
    130: ("it was stopped by Ctrl-C, in order", "nothing"),
    143: ("it was stopped by SIGTERM, in order", "nothing"),
}
"""Meaning and remedy of each exit code."""

ERRORS_HEAD = """
The type of an error shows which party is at fault. A message says what happened, where
(computation, key, record, file and line) and how to continue; `millwheel` prints it as the last
line, and ends with the [exit code](exit-codes.md). All types are in `millwheel.errors`, and derive
from `MillwheelError`.
"""


def classes() -> list[type[MillwheelError]]:
    found = [getattr(errors, name) for name in errors.__all__]
    return [each for each in found if issubclass(each, MillwheelError)]


def exit_codes_page() -> str:
    by_code = sorted(classes(), key=attrgetter("exit_code"))
    names = {
        number: ", ".join(code(each.__name__) for each in group)
        for number, group in groupby(by_code, key=attrgetter("exit_code"))
    }
    rows = [
        (str(number), meaning, remedy, names.get(number, ""))
        for number, (meaning, remedy) in MEANINGS.items()
    ]
    return page("Exit codes", table(["code", "meaning", "remedy", "errors"], rows))


def errors_page() -> str:
    rows = [
        (code(each.__name__), code(_parent(each)), str(each.exit_code), _first(each))
        for each in classes()
        if each is not MillwheelError
    ]
    return page(
        "Errors", prose(ERRORS_HEAD), table(["error", "is a", "exit code", "meaning"], rows)
    )


def _parent(kind: type[MillwheelError]) -> str:
    return kind.__bases__[0].__name__


def _first(kind: type[MillwheelError]) -> str:
    return re.split(r"\n\s*\n(?=Attributes|Args)", inspect.getdoc(kind) or "")[0]
