"""The kinds of entries of the catalogue."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.mistakes.programs import ROWS, changed

RUN = "run shop:pipeline"


@dataclass(frozen=True)
class Mistake:
    """A mistake, and the message that answers it."""

    number: int
    """That of the newcomer's list: 1 to 102; more were not counted there."""
    what: str
    says: tuple[str, ...]
    """Parts of the message: the mistake, its place and the remedy. A command may name the parts of
    its store: ``{store}``, ``{port}`` (one that is in use)."""


@dataclass(frozen=True, kw_only=True)
class Refusal(Mistake):
    """A command that is refused before it looks for its store, which is not there.

    Args:
        at: a part of the line of the program that the message must name.
        log: the message is a line of the log, and the command ends well.
    """

    changes: tuple[tuple[str, str], ...] = ()
    at: str = ""
    command: str = RUN
    code: int = 2
    rows: str = ROWS

    @property
    def program(self) -> str:
        return changed(*self.changes)

    def place(self) -> str:
        """File and line, as messages name them."""
        lines = self.program.splitlines()
        (number,) = [n for n, line in enumerate(lines, 1) if self.at in line]
        return f"shop.py:{number}"


@dataclass(frozen=True, kw_only=True)
class Failure(Refusal):
    """A command that fails, or warns, with its store.

    Args:
        sql: statements that the owner of the store runs before.
        first: commands that run before, with the program that has no mistake.
    """

    code: int = 6
    sql: tuple[str, ...] = ()
    first: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class InTest(Mistake):
    """A statement with a `Harness`, called ``harness``, that raises an error of this exit code."""

    statement: str
    code: int = 2
    changes: tuple[tuple[str, str], ...] = field(default=())


@dataclass(frozen=True, kw_only=True)
class ShownBy(Mistake):
    """Another test shows the message, and has these parts of it in its file."""

    test: str
    """``file::function``, from the folder of all tests."""
