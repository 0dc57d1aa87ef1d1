"""Projects for `millwheel new`, from the files in `millwheel/templates`.

A template is a folder of files as they are, for a project with the name `PLACEHOLDER`. Those in
``shared`` belong to every template that has no file of that name.
"""

from __future__ import annotations

import keyword
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path

from millwheel.errors import UsageError
from millwheel.pipeline import Pipeline

PLACEHOLDER = "your_project"
SHARED = "shared"

MODULE, SQL_FILE = "{}:pipeline", "{}.sql"
"""The argument of `millwheel run`, by the project's name."""


@dataclass(frozen=True)
class Template:
    summary: str
    target: str = MODULE
    extras: tuple[str, ...] = ("embedded",)
    """Extras of the distribution that the project needs."""


TEMPLATES: Mapping[str, Template] = {
    "counts": Template("counts by key and by minute, of a file"),
    "orders": Template("timers, own tables, records by SQL and HTTP", extras=("embedded", "http")),
    "kafka": Template("from one Kafka topic to another", extras=("embedded", "kafka")),
    "sql": Template("a pipeline of queries", SQL_FILE),
}


def name_of(directory: Path) -> str:
    """The name of the project in a directory: of its module, and of its pipeline.

    Raises:
        UsageError: no name can be made of that of the directory, or Python, Postgres or an
            installed package has it.
    """
    given = directory.resolve().name
    name = re.sub(r"[^a-z0-9]+", "_", given.lower()).strip("_")
    if not name or not name[0].isalpha():
        raise UsageError(
            f"no module can be named after the directory {given!r}: a name begins with a letter "
            "from a to z. Give a directory with another name"
        )
    if (holder := _holder(name)) is not None:
        raise UsageError(
            f"a project in {given!r} would have the module {name!r}, but {holder}, which it would "
            f"hide. Give a directory with another name, such as {name}_pipeline"
        )
    return Pipeline(name).name


def _holder(name: str) -> str | None:
    """The present meaning of a module's name; None: it is free."""
    if keyword.iskeyword(name) or keyword.issoftkeyword(name):
        return "that is a word of Python"
    if name in sys.stdlib_module_names:
        return "Python's standard library has a module of that name"
    if any(f"{name}.py" in _entries(template) for template in TEMPLATES):
        return "a file of a template has that name"
    found = find_spec(name)
    if found is None:
        return None
    places = [found.origin] if found.origin else list(found.submodule_search_locations or ())
    if found.origin is None and all(Path(place).parent == Path.cwd() for place in places):
        return None  # any directory here counts as a package without files
    return f"a package of that name is installed ({places[0]})"


def files_of(template: str, name: str) -> dict[str, str]:
    """The texts of a project's files, by their names."""
    chosen = TEMPLATES[template]
    words = {
        PLACEHOLDER: name,
        "your_distribution": name.replace("_", "-"),
        "your_target": chosen.target.format(name),
        "your_extras": ",".join(chosen.extras),
    }
    pattern = re.compile("|".join(words))
    entries = _entries(SHARED) | _entries(template)
    return {
        _substituted(pattern, words, file): _substituted(pattern, words, entry.read_text("utf-8"))
        for file, entry in sorted(entries.items())
    }


def _substituted(pattern: re.Pattern[str], words: Mapping[str, str], text: str) -> str:
    return pattern.sub(lambda found: words[found[0]], text)


def _entries(template: str) -> dict[str, Traversable]:
    """The files of a template. The name of a hidden one has no dot there: tools for the checkout
    would obey it."""
    folder = files("millwheel") / "templates" / template
    return {
        ".gitignore" if entry.name == "gitignore" else entry.name: entry
        for entry in folder.iterdir()
        if entry.is_file()
    }


def commands_of(readme: str, section: str) -> Iterator[str]:
    """The commands in the blocks of a page's section."""
    _, _, rest = readme.partition(f"\n## {section}\n")
    is_command = False
    for line in takewhile(lambda line: not line.startswith("## "), rest.splitlines()):
        if line.startswith("```"):
            is_command = line == "```console"
        elif is_command:
            yield line.removeprefix("$ ")


def write(directory: Path, texts: Mapping[str, str]) -> None:
    """Write a project into a directory that is empty, or not there yet.

    Raises:
        UsageError: it has files, or cannot be written.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        present = sorted(entry.name for entry in directory.iterdir() if entry.name != ".git")
        if present:
            raise UsageError(
                f"{directory} is not empty: it has {_listed(present)}. Give the name of a new "
                "directory, or empty this one"
            )
        for name, text in texts.items():
            (directory / name).write_text(text, "utf-8")
    except OSError as error:
        raise UsageError(
            f"the project cannot be written to {directory}: {error.strerror}. Give another "
            "directory"
        ) from error


def _listed(names: Sequence[str], most: int = 3) -> str:
    shown = ", ".join(names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
