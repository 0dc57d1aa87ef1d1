"""Completes words of the command line in bash, zsh and fish, with the scripts of typer.

A shell starts the program with ``_MILLWHEEL_COMPLETE`` set, and reads the words that fit. Names of
commands are known without an import of a command.

bash takes ``zeitgeist:pipeline`` for three words, and replaces only the last one. So they are put
together for typer, and the part up to the colon is cut off from the answer.
"""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from typing import NamedTuple

import typer


@contextmanager
def answering(environment: MutableMapping[str, str]) -> Iterator[None]:
    """Let typer answer a shell within the block."""
    from typer._completion_classes import completion_init

    completion_init()
    if environment["_MILLWHEEL_COMPLETE"] != "complete_bash":
        yield
        return
    words = environment["COMP_WORDS"].split("\n")
    found = rejoined(words, int(environment["COMP_CWORD"]))
    environment["COMP_WORDS"] = "\n".join(found.words)
    environment["COMP_CWORD"] = str(found.place)
    answers = StringIO()
    try:
        with redirect_stdout(answers):
            yield
    finally:
        for line in answers.getvalue().splitlines():
            typer.echo(line.removeprefix(found.cut))


class JoinedWords(NamedTuple):
    words: list[str]
    place: int
    """Of the word that is completed."""
    cut: str
    """The part of this word that bash keeps."""


def rejoined(words: list[str], place: int) -> JoinedWords:
    """Words of bash, without a cut at each colon."""
    made: list[str] = []
    moved, cut = place, ""
    for number, word in enumerate(words):
        follows = made and (made[-1].endswith(":") or word.startswith(":"))
        if follows:
            made[-1] += word
        else:
            made.append(word)
        if number == place:
            moved = len(made) - 1
            cut = made[-1][: made[-1].rfind(":") + 1]
    return JoinedWords(made, moved, cut)
