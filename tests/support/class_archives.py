"""An archive of Spark's Java classes, with which a session starts in half of the CPU time.

The JVM maps the archive in place of finding, checking and linking 15,000 classes. The archive fits
only the class path of the session that wrote it, so Spark starts from a home that stays in one
place. Both are kept with the packages of this Python: the first session there writes 170 MB as it
ends.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pyspark

from millwheel.spark.java import JavaHome
from millwheel.spark.local_session import JVM_OPTIONS, QUICK_COMPILER, _home

FOLDER = Path(sys.prefix) / "spark-classes"
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""A JVM starts without an archive that does not fit, and need not say so."""
WRITE_SECONDS = 120.0
"""Longest time for a JVM to write an archive, and to end."""


class ClassArchive:
    """The archive for a Java, and Spark's home.

    Raises:
        OSError: there is no place to keep them, or Java is a cut-down one without modules.
    """

    def __init__(self, java: JavaHome) -> None:
        built = (java.home / "lib" / "modules").stat().st_mtime_ns
        FOLDER.mkdir(exist_ok=True)
        self._file = FOLDER / f"spark-{pyspark.__version__}-java-{built}.jsa"
        self._unfinished = FOLDER / f"{os.getpid()}.unfinished"
        self._writer: subprocess.Popen[bytes] | None = None
        self.home = FOLDER / "spark"
        if not self.home.exists():
            with tempfile.TemporaryDirectory(dir=FOLDER) as directory, suppress(FileExistsError):
                made = _home(Path(directory))
                assert made is not None, "SPARK_HOME is set"
                made.rename(self.home)

    def config(self, *, write: bool) -> dict[str, str]:
        """Settings of a session that uses the archive, or may write it if there is none."""
        if self._file.exists():
            option = f"-XX:SharedArchiveFile={self._file}"
        elif write:
            option = f"-XX:ArchiveClassesAtExit={self._unfinished}"
        else:
            return {}
        return {JVM_OPTIONS: f"{QUICK_COMPILER} {option} {QUIET}"}

    def keep(self, jvm: subprocess.Popen[bytes]) -> None:
        """Keep what a JVM has written, if it ended by itself: part of an archive would crash the
        next one."""
        if jvm.returncode == 0 and self._unfinished.exists():
            for old in FOLDER.glob("*.jsa"):
                old.unlink()
            self._unfinished.rename(self._file)
        self._unfinished.unlink(missing_ok=True)
