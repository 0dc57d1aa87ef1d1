"""The file sources `JsonLines` and `Csv`: one or more files, each a partition."""

from __future__ import annotations

import glob
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias, cast

from millwheel.errors import UsageError
from millwheel.files.csv_rows import CsvFormat, Dialect
from millwheel.files.discovery import FileDiscovery, Pattern, path_of
from millwheel.files.file_rows import RowFormat, listed
from millwheel.files.followed_files import FollowedReader
from millwheel.files.followed_path import Following, OnMissing
from millwheel.files.json_lines import JsonLinesFormat
from millwheel.files.packed import open_bytes
from millwheel.files.whole import WholeFileReader
from millwheel.sources import Partition

AnyPath: TypeAlias = "str | os.PathLike[str]"
MakeFormat: TypeAlias = Callable[[str, Any], RowFormat]
MAX_ROW_BYTES = 8 << 20
"""Default limit of a row's size; a longer row is a bad row and is never in memory as a whole."""


POLL_SECONDS = 1.0
"""Default polling interval of followed files where the system does not report changes."""


@dataclass(frozen=True)
class FilePartition:
    path: str
    absolute: str
    member: str | None
    make_format: MakeFormat

    @property
    def identity(self) -> str:
        """The absolute path, with the member as given: ``/data/all.zip!2013.csv``.

        It is known without the file; a symbolic link that is redirected keeps it. A file that is
        moved or renamed is a different file and is read from its start.
        """
        return self.absolute if self.member is None else f"{self.absolute}!{self.member}"

    async def open(self, value_type: Any, position: dict[str, Any] | None) -> WholeFileReader:
        """Open the file at a stored position, or at its start.

        Hashes the acknowledged bytes, about 1 s per GB; gzip and zip are unpacked for it.

        Raises:
            InputError: the file is missing or damaged, or acknowledged rows have changed.
            UsageError: rows cannot be decoded to this type.
        """
        name, source = open_bytes(self.path, self.absolute, self.member)
        try:
            reader = WholeFileReader(format_of(self.make_format, name, value_type), source)
            await reader.begin(position)
        except BaseException:
            source.close()
            raise
        return reader


def format_of(make: MakeFormat, name: str, value_type: Any) -> RowFormat:
    """Create the format for rows of a type.

    Raises:
        UsageError: rows cannot be decoded to this type.
    """
    try:
        return make(name, value_type)
    except (TypeError, NotImplementedError, NameError) as error:
        raise UsageError(f"{name}: rows cannot be read as {value_type!r}: {error}") from error


@dataclass(frozen=True)
class FollowedPartition:
    """A followed path (the file there, and its successors after rotation), or a file of a
    directory."""

    identity: str
    """The absolute path; for a file of a directory, the one at which it was first seen."""
    following: Following
    make_format: MakeFormat

    async def open(self, value_type: Any, position: dict[str, Any] | None) -> FollowedReader:
        """Start at a stored position, or at the beginning; the file need not exist yet.

        Raises:
            InputError: the file cannot be read or followed, or unread rows are missing.
            UsageError: rows cannot be decoded to this type.
        """
        format_ = format_of(self.make_format, self.following.path, value_type)
        reader = FollowedReader(format_, self.following)
        try:
            await reader.begin(position)
        except BaseException:
            reader.close()
            raise
        return reader


class Files(ABC):
    _grows = False

    def __init__(
        self,
        path: AnyPath | Sequence[AnyPath],
        member: str | None,
        max_row_bytes: int,
        follow: bool,
        poll: float,
        on_missing: OnMissing,
    ) -> None:
        self._many = not isinstance(path, (str, os.PathLike))
        given = [path] if isinstance(path, (str, os.PathLike)) else path
        self._paths = [os.fspath(one) for one in given]
        # resolved now and not when it is opened, so that a later chdir does not change the file
        self._absolute = [os.path.abspath(one) for one in self._paths]
        self.member = member
        self.max_row_bytes = max_row_bytes
        self.follow = follow
        self.poll = poll
        self.on_missing = on_missing
        kind = type(self).__name__.removeprefix("_Growing")
        if not self._paths:
            raise UsageError(f"{kind}: no path is given")
        twice = {one for one in self._absolute if self._absolute.count(one) > 1}
        if twice:
            raise UsageError(f"{kind}: a file is given more than once: {listed(sorted(twice))}")
        if max_row_bytes < 1:
            raise UsageError(f"{kind}: max_row_bytes must be at least 1, not {max_row_bytes}")
        if poll <= 0:
            raise UsageError(f"{kind}: poll must be more than 0 seconds, not {poll}")
        if on_missing not in ("fail", "skip"):
            raise UsageError(f'{kind}: on_missing must be "fail" or "skip", not {on_missing!r}')
        if follow and member is not None:
            raise UsageError(f"{kind}: a member of a zip file cannot be followed; leave member out")
        if self._grows:
            self._paths = [os.path.join(p, "") if _is_directory(p) else p for p in self._paths]
        else:
            self._refuse_patterns(kind)

    def _refuse_patterns(self, kind: str) -> None:
        for path in self._paths:
            if not _is_pattern(path) or (not self.follow and os.path.isfile(path)):
                continue  # the name of a file may contain brackets
            what = "a directory" if _is_directory(path) else "a pattern"
            if self.follow:
                raise UsageError(
                    f"{kind}: {path!r} is {what}, in which files appear; give it alone, not in a "
                    "list"
                )
            raise UsageError(
                f"{kind}: {path!r} is {what}. Without follow=True the files must be the same at "
                "each start: list them, as in sorted(glob.glob(...)), or give follow=True to "
                "read the existing files and those that appear later"
            )

    @property
    def bounded(self) -> bool:
        return not self.follow

    def partitions(self) -> list[Partition]:
        """One partition per file, in the order given. Nothing is opened yet."""
        if self.follow:
            return [self._followed(absolute) for absolute in self._absolute]
        return [
            FilePartition(path, absolute, self.member, self._make_format)
            for path, absolute in zip(self._paths, self._absolute, strict=True)
        ]

    def _followed(self, identity: str, pattern: Pattern | None = None) -> FollowedPartition:
        following = Following(identity, self.poll, self.on_missing)
        if pattern is not None:
            following = replace(
                following, path=path_of(identity), is_one_file=True, elsewhere=pattern.paths
            )
        return FollowedPartition(identity, following, self._make_format)

    @abstractmethod
    def _make_format(self, file: str, value_type: Any) -> RowFormat: ...

    def _describe(self, kind: str) -> dict[str, Any]:
        described: dict[str, Any] = {kind: self._paths if self._many else self._paths[0]}
        if self.member is not None:
            described["member"] = self.member
        if self.follow:
            described["follow"] = True
        if self._grows:
            described["discovers"] = True
        return described


def _is_pattern(path: AnyPath | Sequence[AnyPath]) -> bool:
    if not isinstance(path, (str, os.PathLike)):
        return False
    text = os.fspath(path)
    return _is_directory(text) or glob.has_magic(text)


def _is_directory(path: str) -> bool:
    return path.endswith(os.sep) or os.path.isdir(path)


class GrowingFiles(Files):
    _grows = True

    def partitions(self) -> list[Partition]:
        """None: `discover` finds them."""
        return []

    def partition(self, identity: str) -> Partition:
        return self._followed(identity, Pattern(self._paths[0]))

    def discover(self, position: dict[str, Any] | None) -> FileDiscovery:
        return FileDiscovery(Pattern(self._paths[0]), self.poll, position)


class JsonLines(Files):
    """One JSON value per line: ``JsonLines("lines.jsonl")``.

    ```python
    class Visit(Struct):
        page: str
        at: datetime

    VISITS = Stream("visits", Visit)
    log = JsonLines("/var/log/visits.jsonl", follow=True)
    pipeline.inject(VISITS, log, timestamp=lambda visit: visit.at)
    ```

    Blank lines are skipped. `on_error` of `inject` handles bad rows: invalid JSON, a value of
    another type, invalid UTF-8, or a row that is too long.

    Args:
        path: a file, or a sequence of files; plain, gzip or zip, detected by their first bytes.
        member: the member to read of a zip file with several.
        max_row_bytes: a longer line is a bad row.
        follow: keep reading for ever: appended rows, and the new file after a rotation. `path` may
            then also be a pattern (``"/data/*.jsonl"``, ``**`` for all directories below) or a
            directory (``"/data/"``; with the slash, it need not exist yet), in which files appear.
        poll: polling interval of a followed file, in seconds, where the system does not report
            changes (network file systems, systems other than Linux).
        on_missing: if unread rows of a followed file are missing (it was removed too early):
            "fail", or "skip" to log it and continue with the file that exists.
    """

    def __new__(cls, path: AnyPath | Sequence[AnyPath], *, follow: bool = False, **_: Any) -> Self:
        grows = cls is JsonLines and follow and _is_pattern(path)
        return object.__new__(cast("type[Self]", _GrowingJsonLines) if grows else cls)

    def __init__(
        self,
        path: AnyPath | Sequence[AnyPath],
        *,
        member: str | None = None,
        max_row_bytes: int = MAX_ROW_BYTES,
        follow: bool = False,
        poll: float = POLL_SECONDS,
        on_missing: OnMissing = "fail",
    ) -> None:
        super().__init__(path, member, max_row_bytes, follow, poll, on_missing)

    def _make_format(self, file: str, value_type: Any) -> RowFormat:
        return JsonLinesFormat(file, value_type, self.max_row_bytes)

    def describe(self) -> dict[str, Any]:
        return self._describe("json_lines")


class _GrowingJsonLines(GrowingFiles, JsonLines):
    pass


class Csv(Files):
    """One row per line, below a header row that names the fields: ``Csv("flights.csv")``.

    ```python
    class Sale(Struct):
        day: datetime
        item: str
        cents: int | None

    SALES = Stream("sales", Sale)
    table = Csv(["2023.csv.gz", "2024.csv.gz"], null=("", "NA"))
    pipeline.inject(SALES, table, timestamp=lambda sale: sale.day, on_error="dead_letter")
    ```

    Cells are converted as in msgspec's lax mode: ``12``, ``0.5``, ``true``,
    ``2013-01-01T05:00:00Z``; ``+1``, ``007`` and `` 5`` are not numbers, and a number is not a time
    (``20240101``, ``1700000000``): declare the field as int and convert it. Columns without a field
    are ignored. `on_error` of `inject` handles bad rows: a number of cells other than the header's,
    a cell that does not fit its field, text after a closing quote, invalid UTF-8, or a row that is
    too long.

    A null cell becomes None if the field allows it; otherwise a str field keeps the text, another
    field takes its default, and without a default the row is bad.

    Args:
        path, member, max_row_bytes, follow, poll, on_missing: as for `JsonLines`.
        delimiter: one ASCII character between cells.
        quote: one ASCII character around cells that contain delimiters, newlines or (doubled)
            quotes; None if no character is special.
        null: the cells that mean "no value", such as ``("", "NA")``. In a field that is neither str
            nor bytes, msgspec also takes the text ``null`` for None.
        optional: fields with a default that the header may lack. For other fields a missing column
            is an error, since a misspelt field would silently have its default in every row.
    """

    def __new__(cls, path: AnyPath | Sequence[AnyPath], *, follow: bool = False, **_: Any) -> Self:
        grows = cls is Csv and follow and _is_pattern(path)
        return object.__new__(cast("type[Self]", _GrowingCsv) if grows else cls)

    def __init__(
        self,
        path: AnyPath | Sequence[AnyPath],
        *,
        member: str | None = None,
        delimiter: str = ",",
        quote: str | None = '"',
        null: Sequence[str] = ("",),
        optional: Sequence[str] = (),
        max_row_bytes: int = MAX_ROW_BYTES,
        follow: bool = False,
        poll: float = POLL_SECONDS,
        on_missing: OnMissing = "fail",
    ) -> None:
        super().__init__(path, member, max_row_bytes, follow, poll, on_missing)
        for kind, character in (("delimiter", delimiter), ("quote", quote)):
            if character is not None and (
                len(character) != 1 or not character.isascii() or character in "\r\n\0"
            ):
                raise UsageError(f"Csv: the {kind} must be one ASCII character, not {character!r}")
        if delimiter == quote:
            raise UsageError(f"Csv: delimiter and quote are both {quote!r}")
        for kind, names in (("null", null), ("optional", optional)):
            if isinstance(names, str):
                raise UsageError(f"Csv: give {kind} as a tuple of strings, not {names!r}")
        self.delimiter = delimiter
        self.quote = quote
        self.null = tuple(null)
        self.optional = tuple(optional)

    def _make_format(self, file: str, value_type: Any) -> RowFormat:
        dialect = Dialect(
            self.delimiter, self.quote, frozenset(self.null), frozenset(self.optional)
        )
        return CsvFormat(file, value_type, dialect, self.max_row_bytes)

    def describe(self) -> dict[str, Any]:
        return {
            **self._describe("csv"),
            "delimiter": self.delimiter,
            "quote": self.quote,
            "null": list(self.null),
            "optional": list(self.optional),
        }


class _GrowingCsv(GrowingFiles, Csv):
    pass
