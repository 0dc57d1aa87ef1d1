"""Replacing groups of Parquet files, killed at any move: no file is gone whose successor is not
there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from unittest.mock import MagicMock

import pytest

from millwheel.aggregates import Parquet, hours
from millwheel.errors import UsageError, UserCodeError
from millwheel.spark.aggregation import files
from millwheel.spark.aggregation.aggregate_progress import AggregateProgress
from millwheel.spark.aggregation.changed_groups import Change
from millwheel.spark.aggregation.files import FilesTarget
from millwheel.spark.groups import Groups

BEFORE = AggregateProgress(1, {})
KINDS = {"user": "string", "hour": "timestamp", "n": "bigint"}
Content = dict[tuple[str, str], str]

OLD: Content = {
    ("ann", "00"): "old",
    ("ann", "01"): "old",
    ("bob", "00"): "old",
    ("eve", "00"): "old",
}
NEW: Content = {("ann", "01"): "new", ("bob", "02"): "new", ("zoe", "00"): "new"}


class Killed(BaseException):
    """The process ends."""


class Place:
    """The directory of an aggregate, and the batches of a process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.stored = MagicMock()
        self.stored.aggregate.name = "sums"
        self.stored.aggregate.group_names = ("user", "hour")
        self.write(path, OLD)

    def write(self, where: Path, content: Content) -> None:
        where.mkdir(parents=True, exist_ok=True)
        for (user, hour), text in content.items():
            group = where / f"user={user or files.EMPTY}" / f"hour=2024-10-27 {hour}%3A00%3A00"
            group.mkdir(parents=True)
            (group / "part.parquet").write_text(text)

    def content(self) -> Content:
        found = {}
        for file in self.path.glob("user=*/hour=*/*.parquet"):
            user, hour = (
                part.partition("=")[2] for part in file.parent.relative_to(self.path).parts
            )
            found["" if user == files.EMPTY else user, hour[11:13]] = file.read_text()
        return found

    def groups(self, content: Content) -> Groups:
        """The groups of rows as Postgres has them."""
        ends = ((user, f"2024-10-27 {hour}:00:00+00", "") for user, hour in content)
        return Groups.of(("user", hours("at")), list(ends))

    def batch(
        self, new: Content, changed: Groups | None, before_replace: Callable[[], object] = bool
    ) -> int:
        """A batch of a process that has just started."""
        target = FilesTarget(self.stored, Parquet(self.path))
        target.prepare()
        target.begin()
        target._kinds = KINDS
        self.write(target._incoming, new)
        before_replace()
        return target.replace(BEFORE, Change({}, 1, 0, changed))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path / "sums")


def dying(number: int) -> Callable[..., None]:
    """A move that ends the process after so many."""
    move, left = files._move, [number]

    def moved(*arguments: Path) -> None:
        if not left[0]:
            raise Killed
        left[0] -= 1
        move(*arguments)

    return moved


@pytest.mark.parametrize("all_rows", [False, True])
@pytest.mark.parametrize("number", range(9))
def test_no_kill_loses_a_group(
    place: Place, monkeypatch: pytest.MonkeyPatch, number: int, all_rows: bool
) -> None:
    changed = None if all_rows else place.groups({**NEW, ("bob", "00"): ""})
    after = NEW if all_rows else {**OLD, **NEW}
    if not all_rows:
        del after["bob", "00"]  # it has changed, and has no rows any more
    with monkeypatch.context() as patch:
        patch.setattr(files, "_move", dying(number))
        with suppress(Killed):
            place.batch(NEW, changed)
    FilesTarget(place.stored, Parquet(place.path)).begin()
    if not place.stored.advance.called:
        kept = place.content()
        assert {user for user, _ in OLD} <= {user for user, _ in kept}
        assert all_rows or OLD.keys() <= kept.keys()
    assert place.batch(NEW, changed) == len(NEW)
    assert place.content() == after
    assert not [*place.path.glob("_*")]


@pytest.mark.parametrize("number", range(4))
def test_a_batch_that_counts_is_not_undone(
    place: Place, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Though the process ends while it deletes what was there before, or right after the batch
    counts."""
    changed = place.groups({**NEW, ("bob", "00"): ""})
    delete, left = shutil.rmtree, [number]

    def dying_delete(path: Path) -> None:
        if not left[0]:
            raise Killed
        left[0] -= 1
        delete(path)

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", dying_delete)
        with suppress(Killed):
            place.batch(NEW, changed)
    FilesTarget(place.stored, Parquet(place.path)).begin()
    if not place.stored.advance.called:
        place.batch(NEW, changed)
    after = {**OLD, **NEW}
    del after["bob", "00"]
    assert place.content() == after


def test_a_batch_that_is_refused_changes_nothing(place: Place) -> None:
    with pytest.raises(UserCodeError, match="not given, such as bob 2024-10-27 02:00:00"):
        place.batch(NEW, place.groups({("ann", "01"): "", ("zoe", "00"): ""}))
    assert place.content() == OLD
    place.batch({}, place.groups({}))
    assert place.content() == OLD
    assert not place.stored.advance.call_count > 1


def test_what_another_process_removed_replaces_nothing(place: Place) -> None:
    def another_begins() -> None:
        FilesTarget(place.stored, Parquet(place.path)).begin()

    with pytest.raises(UsageError, match="another process has removed"):
        place.batch(NEW, place.groups(NEW), another_begins)
    assert place.content() == OLD
    assert not place.stored.advance.called


def test_an_empty_text_is_a_group_and_is_told_of(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.batch({("", "00"): "new"}, place.groups({("", "00"): ""}))
    assert place.content()["", "00"] == "new"
    assert "empty_text_reads_as_null" in capsys.readouterr().out
