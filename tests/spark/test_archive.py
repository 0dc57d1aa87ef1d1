"""The archive of Spark's classes: which sessions use it, and that it can be written."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from millwheel.spark.archive import Archive, link_home
from millwheel.spark.session import _home

ON_ARCHIVE = """
from millwheel.java import prepare_environment
from millwheel.spark import session as module

prepare_environment()
module.QUICK_COMPILER += " -Xshare:on"  # a JVM that cannot map the archive ends
with module.session() as spark:
    print(spark.range(3).count())
"""


@pytest.fixture
def java(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java that is no more than a file, and a cache of this test's own."""
    program = tmp_path / "java" / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text("")
    monkeypatch.setenv("JAVA_HOME", str(program.parent.parent))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SPARK_HOME", raising=False)
    return program


def made() -> Archive:
    archive = Archive.of()
    assert archive is not None
    archive.folder.mkdir()
    link_home(archive.home)
    archive.file.write_bytes(b"")
    return archive


def test_a_session_uses_the_archive_that_is_there(java: Path, tmp_path: Path) -> None:
    assert _home(tmp_path) == (tmp_path / "spark", "")
    archive = made()
    home, options = _home(tmp_path)
    assert home == archive.home
    assert f"-XX:SharedArchiveFile={archive.file}" in options
    assert (archive.home / "jars").is_dir()
    assert not (archive.home / "python").exists()


def test_another_java_has_another_archive(java: Path, tmp_path: Path) -> None:
    archive = made()
    os.utime(java, ns=(0, 0))
    assert Archive.of() != archive
    assert _home(tmp_path) == (tmp_path / "spark", "")


def test_a_spark_of_the_users_own_is_left_alone(
    java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made()
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert Archive.of() is None
    assert _home(tmp_path) == (None, "")


def test_without_a_java_there_is_no_archive(
    java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert Archive.of() is None


def test_without_a_folder_of_its_own_a_session_starts_as_before(
    java: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> Path:
        raise PermissionError("no folder")

    monkeypatch.setattr("millwheel.spark.archive.private_folder", refuse)
    assert _home(tmp_path) == (tmp_path / "spark", "")


@pytest.mark.soak
def test_it_is_written_once_and_sessions_run_on_it(tmp_path: Path) -> None:
    environment = os.environ | {"XDG_CACHE_HOME": str(tmp_path)}

    def run(*words: str) -> str:
        return subprocess.run(
            [sys.executable, *words], env=environment, capture_output=True, text=True, check=True
        ).stdout

    said = run("-m", "millwheel", "spark", "--prepare")
    (file,) = tmp_path.glob("millwheel/java/spark-*/classes.jsa")
    assert f"wrote {file}" in said
    assert run("-c", ON_ARCHIVE) == "3\n"
