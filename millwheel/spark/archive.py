"""An archive of Spark's loaded classes, with which its JVM starts faster.

A start of Spark reads, checks and links some 15,000 classes. A JVM can write the result to a file when it ends, and map
that file into memory at later starts (class data sharing). The file fits one JVM and one installation of PySpark, in one
place. A JVM that finds anything else changed starts without it.

``millwheel spark --prepare`` writes it, as a session that runs one of each kind of work ends.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from millwheel.java import private_folder

WRITE_SECONDS = 300.0
"""Longest time for which the JVM may write the archive."""

_SILENT = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""The JVM logs a warning for each class that it does not archive."""


@dataclass(frozen=True)
class Archive:
    """The folder of an archive, which may not be there yet."""

    folder: Path

    @classmethod
    def of(cls, environ: Mapping[str, str] = os.environ) -> Archive | None:
        """The archive for the Java and the PySpark of an environment.

        Returns:
            None for an installation of Spark that is the user's own (``SPARK_HOME``), or without a Java.

        Raises:
            PermissionError: there is no folder that only this user can write.
        """
        import pyspark

        if "SPARK_HOME" in environ:
            return None
        home = environ.get("JAVA_HOME")
        java = shutil.which("java") if home is None else str(Path(home) / "bin" / "java")
        if java is None or not os.path.exists(java):
            return None
        real = os.path.realpath(java)
        package = os.path.realpath(pyspark.__file__)
        facts = (real, os.stat(real).st_mtime_ns, package, pyspark.__version__)
        name = hashlib.blake2b(repr(facts).encode(), digest_size=8).hexdigest()
        return cls(private_folder(environ) / f"spark-{name}")

    @property
    def file(self) -> Path:
        """The file that the JVM maps."""
        return self.folder / "classes.jsa"

    @property
    def home(self) -> Path:
        """The SPARK_HOME that the archive was made with: an archive knows the paths of its jars."""
        return self.folder / "spark"

    @property
    def is_there(self) -> bool:
        """Whether a session can use it."""
        return self.file.is_file() and self.home.is_dir()

    @property
    def use(self) -> str:
        """The JVM's options that use it."""
        return f"-XX:SharedArchiveFile={self.file} {_SILENT}"


def writing(file: Path) -> str:
    """The JVM's options that write an archive when it ends."""
    return f"-XX:ArchiveClassesAtExit={file} {_SILENT}"


def link_home(home: Path) -> None:
    """Make a SPARK_HOME from which Python processes import the installed, compiled PySpark.

    In that of the package they find ``pyspark.zip`` first, which has no compiled files: each start takes 1.9 s of CPU, not
    0.7 s, and on a busy machine Spark gives up on a process that has not called back after 10 s.
    """
    import pyspark

    home.mkdir(exist_ok=True)
    for part in Path(pyspark.__file__).parent.iterdir():
        if part.name != "python":
            with suppress(FileExistsError):
                (home / part.name).symlink_to(part)
