"""`FileChanges`: which files of a project count as changed."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from millwheel.cli.developing.changes import FileChanges, code_files


async def found(changes: FileChanges) -> list[str]:
    async with asyncio.timeout(20):
        return [path.name for path in await changes.wait()]


@pytest.fixture
def code(tmp_path: Path) -> Path:
    path = tmp_path / "trends.py"
    path.write_text("x = 1")
    return path


async def test_the_content_of_code_counts_and_not_its_time(tmp_path: Path, code: Path) -> None:
    changes = FileChanges(tmp_path)
    other = tmp_path / "rules.py"
    other.write_text("")
    changes.watch(code=[code, other, Path(os.__file__)])
    os.utime(code, (0, 0))
    other.write_text("y = 1")
    assert await found(changes) == ["rules.py"]
    code.unlink()
    assert await found(changes) == ["trends.py"]
    assert changes.watched == sorted([code, other])  # the library's file is not the project's
    changes.close()


async def test_an_input_counts_by_its_time_and_length(tmp_path: Path) -> None:
    changes = FileChanges(tmp_path)
    path = tmp_path / "searches.jsonl"
    changes.watch(inputs=[path])  # it need not be there
    path.write_text("{}")
    assert await found(changes) == ["searches.jsonl"]
    changes.close()


async def test_a_change_during_the_start_of_the_next_version_counts(
    tmp_path: Path, code: Path
) -> None:
    changes = FileChanges(tmp_path)
    changes.watch(code=[code])
    changes.forget()
    code.write_text("x = 2")
    changes.watch(code=[code])
    assert await found(changes) == ["trends.py"]
    changes.forget()
    changes.watch()  # a version without that file
    changes.forget()
    code.write_text("x = 3")
    changes.watch(code=[code])  # the first version that has it again
    (tmp_path / "other.py").write_text("")
    changes.watch(code=[tmp_path / "other.py"])
    (tmp_path / "other.py").write_text("y = 1")
    assert await found(changes) == ["other.py"]
    changes.close()


async def test_any_code_counts_after_an_import_that_failed(tmp_path: Path, code: Path) -> None:
    changes = FileChanges(tmp_path)
    changes.watch_all()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "missing.py").write_text("")
    assert await found(changes) == ["missing.py"]
    changes.close()


def test_code_is_not_looked_for_in_environments(tmp_path: Path, code: Path) -> None:
    for name in ("venv", ".hidden", "__pycache__", "package"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "module.py").touch()
    (tmp_path / "venv" / "pyvenv.cfg").touch()
    assert {*code_files(tmp_path)} == {code, tmp_path / "package" / "module.py"}
