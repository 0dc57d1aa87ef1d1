"""An archive of Kafka's Java classes, with which a broker starts in half of the CPU time.

It is kept beside Kafka's jars: the first tests with Kafka write it, 50 MB, with a broker that only
starts and ends.
"""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from examples.kafka_broker import KafkaBroker, _java, jars

OPTIONS = "JDK_JAVA_OPTIONS"
QUIET = "-Xlog:cds=off -Xlog:cds+dynamic=off"
"""A JVM starts without an archive that does not fit, and need not say so."""
WRITE_SECONDS = 120.0


@contextmanager
def archived_classes() -> Iterator[None]:
    """Let each JVM that starts during the block use the archive; without one if it cannot be
    written."""
    archive = _archive()
    if archive is None:
        yield
        return
    with _option(f"-XX:SharedArchiveFile={archive} {QUIET}"):
        yield


def _archive() -> Path | None:
    """The archive for this Java; written if there is none."""
    java = Path(shutil.which(_java()) or "java").resolve()
    modules = java.parents[1] / "lib" / "modules"
    try:
        archive = jars() / f"java-{modules.stat().st_mtime_ns}.jsa"
        if not archive.exists():
            unfinished = archive.with_suffix(f".{os.getpid()}")
            if not _write(unfinished):
                unfinished.unlink(missing_ok=True)
                return None
            unfinished.rename(archive)
    except OSError:
        return None
    return archive


def _write(archive: Path) -> bool:
    """Whether it is whole: part of an archive would crash the next JVM."""
    broker = KafkaBroker(Path(tempfile.mkdtemp(prefix="millwheel-kafka-")))
    try:
        with _option(f"-XX:ArchiveClassesAtExit={archive} {QUIET}"):
            broker.start()
        broker.signal(signal.SIGTERM)
        deadline = time.monotonic() + WRITE_SECONDS
        while broker.pid(1) is not None:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.1)
    finally:
        broker.remove()
    return archive.exists()


@contextmanager
def _option(words: str) -> Iterator[None]:
    before = os.environ.get(OPTIONS)
    os.environ[OPTIONS] = f"{before or ''} {words}"
    try:
        yield
    finally:
        if before is None:
            del os.environ[OPTIONS]
        else:
            os.environ[OPTIONS] = before
