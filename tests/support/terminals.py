"""A terminal of some width: runs commands on it, and knows the screen that a user sees."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import termios
import threading
from collections.abc import Callable
from dataclasses import dataclass

from rich.cells import cell_len

from tests.support import forked_commands
from tests.support.shells import SECONDS, Shell

ROWS = 40

PIECE = re.compile(r"\x1b\[(?P<numbers>[?\d;]*)(?P<verb>[A-Za-z])|(?P<sign>[^\x1b])", re.DOTALL)


class Screen:
    """Obeys what `millwheel.cli` sends: text, line feeds, and a few movements of the cursor."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.rows: list[list[str]] = [[]]
        self.row = self.column = 0
        self.folded: list[str] = []
        """Lines that were wider than the screen."""

    @property
    def lines(self) -> list[str]:
        found = ["".join(row).rstrip() for row in self.rows]
        while found and not found[-1]:
            found.pop()
        return found

    def feed(self, text: str) -> Screen:
        for piece in PIECE.finditer(text):
            if piece["verb"]:
                self._obey(piece["verb"], piece["numbers"])
            else:
                self._show(piece["sign"])
        return self

    def _show(self, sign: str) -> None:
        if sign == "\r":
            self.column = 0
        elif sign == "\n":
            self._down()
        elif sign.isprintable():
            if self.column + cell_len(sign) > self.columns:
                self.folded.append("".join(self.rows[self.row]))
                self.column = 0
                self._down()
            row = self.rows[self.row]
            row += " " * (self.column + 1 - len(row))
            row[self.column] = sign
            self.column += cell_len(sign)

    def _down(self) -> None:
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append([])

    def _obey(self, verb: str, numbers: str) -> None:
        if verb == "A":
            self.row = max(self.row - int(numbers or 1), 0)
        elif verb in "KJ":
            assert numbers == ""
            del self.rows[self.row][self.column :]
            if verb == "J":
                del self.rows[self.row + 1 :]
        else:
            assert verb == "m" or numbers == "?25", f"an unknown sequence {numbers}{verb}"


@dataclass
class Shown:
    code: int
    raw: str
    screen: Screen

    @property
    def text(self) -> str:
        return "\n".join(self.screen.lines)


class Terminal:
    """A pseudo-terminal on which one command of a shell runs."""

    def __init__(self, columns: int) -> None:
        self.ours, self.theirs = pty.openpty()
        self.resize(columns)

    def resize(self, columns: int) -> None:
        size = struct.pack("HHHH", ROWS, columns, 0, 0)
        fcntl.ioctl(self.ours, termios.TIOCSWINSZ, size)
        self.columns = columns

    def run(
        self,
        shell: Shell,
        *arguments: str,
        then: Callable[[str, Callable[[int], None]], bool] = lambda shown, signal_: True,
        **environment: str,
    ) -> Shown:
        """Run a command to its end.

        Args:
            then: is called with all that was shown, and a function that sends a signal, until it
                returns True.
        """
        given = {n: v for n, v in shell.environment.items() if n not in ("COLUMNS", "NO_COLOR")}
        process = forked_commands.parent().start_on_terminal(
            self.theirs, list(arguments), shell.directory, given | {"TERM": "xterm"} | environment
        )
        os.close(self.theirs)
        watchdog = threading.Timer(SECONDS, process.kill)
        watchdog.start()
        raw, done = b"", False
        try:
            while data := os.read(self.ours, 65536):
                raw += data
                done = done or then(raw.decode(errors="ignore"), process.send_signal)
        except OSError:  # the other end is closed
            pass
        os.close(self.ours)
        watchdog.cancel()
        code = process.wait()
        assert done, f"it has ended before that: {raw.decode()}"
        assert code != -signal.SIGKILL, f"it did not end: {raw.decode()}"
        return Shown(code, raw.decode(), Screen(self.columns).feed(raw.decode()))


def interrupt_when(wanted: Callable[[str], bool]) -> Callable[[str, Callable[[int], None]], bool]:
    def then(shown: str, send: Callable[[int], None]) -> bool:
        if wanted(shown):
            send(signal.SIGINT)
            return True
        return False

    return then
