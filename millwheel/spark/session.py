"""A local Spark session that starts quietly, stays within bounds and leaves nothing behind.

Spark's own way to start (``SparkSession.builder``) lets the JVM write its greetings to the
terminal and keeps it until the interpreter ends. Here the JVM is started by
``pyspark.java_gateway.launch_gateway`` with its standard error on a pipe: what it says while it
starts is shown only if it does not start, what it says later is passed on. At the end it is
stopped and waited for.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import structlog

from millwheel.errors import UsageError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

MASTER = "local[2]"
DRIVER_MEMORY = "1g"
STOP_SECONDS = 15
KEPT_LINES = 100
"""Of what the JVM said while it started."""
SHUFFLE_PARTITIONS = 4
"""Spark's 200 are for a cluster; each costs a task."""

# A host whose name leads nowhere must not keep Spark from starting on it.
LOCAL_SETTINGS = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
LOCAL_ENVIRONMENT = {"SPARK_LOCAL_IP": "127.0.0.1"}

log = structlog.get_logger("millwheel.spark")


@contextmanager
def session(
    *,
    master: str = MASTER,
    driver_memory: str = DRIVER_MEMORY,
    environment: Mapping[str, str] | None = None,
    config: Mapping[str, str] | None = None,
    launched: Callable[[subprocess.Popen[bytes]], object] | None = None,
) -> Iterator[SparkSession]:
    """Start Spark, with `environment` for its workers and `config` over our settings; stop it.

    `launched` is called with the JVM as soon as there is one, some seconds before the session.
    Raises UsageError if Java does not start, or if this process has a session already.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        raise UsageError(
            "this process has a Spark session already: use millwheel.spark.register(spark) and "
            "millwheel.spark.snapshot(…) with it"
        )
    local = master.startswith("local")
    with (
        tempfile.TemporaryDirectory(prefix="millwheel-spark-") as scratch,
        _environment((LOCAL_ENVIRONMENT if local else {}) | dict(environment or {})),
        _jvm(
            _settings(master, driver_memory, scratch)
            | (LOCAL_SETTINGS if local else {})
            | dict(config or {})
        ) as (process, start),
    ):
        if launched is not None:
            launched(process)
        # SparkContext installs a handler for Ctrl-C that would talk to the JVM in the middle of
        # an answer from it; the one that was there comes back.
        interrupt = signal.getsignal(signal.SIGINT)
        context = start()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupt)
        spark: SparkSession | None = None
        try:
            # What fails comes as an exception; as ERROR it comes again, with Java's whole stack.
            context.setLogLevel("FATAL")
            spark = SparkSession.builder.getOrCreate()
            yield spark
        finally:
            _from_fresh_thread(lambda: _stop(context, spark))


def _stop(context: SparkContext, spark: SparkSession | None) -> None:
    context.setLogLevel("OFF")  # jobs that are cancelled are no errors
    context.cancelAllJobs()
    if spark is not None:
        spark.stop()
    context.stop()


def _settings(master: str, driver_memory: str, scratch: str) -> dict[str, str]:
    return {
        "spark.app.name": "millwheel",
        "spark.master": master,
        "spark.driver.memory": driver_memory,
        "spark.local.dir": scratch,
        "spark.sql.warehouse.dir": str(Path(scratch) / "warehouse"),
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": str(SHUFFLE_PARTITIONS),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }


@contextmanager
def _environment(changes: Mapping[str, str]) -> Iterator[None]:
    """What the JVM and the Python workers inherit; only while they start and run."""
    package_root = str(Path(__file__).resolve().parents[2])
    # Workers import this package and the job's module from where this process does.
    places = [package_root, os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])]
    wanted = {
        # Else workers take the first python3 on the PATH.
        "PYSPARK_PYTHON": sys.executable,
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYTHONPATH": os.pathsep.join(places),
        **changes,
    }
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextmanager
def _jvm(
    settings: Mapping[str, str],
) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], SparkContext]]]:
    """A JVM, gone afterwards; with it comes what makes the SparkContext in it."""
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    voice = _Voice()
    try:
        gateway = launch_gateway(  # type: ignore[no-untyped-call]
            conf, {"stderr": voice.write_end}
        )
    except PySparkRuntimeError as error:
        raise UsageError(f"Spark did not start: {voice.ended() or error}") from error
    finally:
        os.close(voice.write_end)  # the JVM has its own
    process: subprocess.Popen[bytes] = gateway.proc

    def start() -> SparkContext:
        try:
            context = SparkContext(conf=conf, gateway=gateway)
        except Py4JError as error:
            raise UsageError(f"Spark did not start: {error}") from error
        voice.aloud.set()
        return context

    try:
        yield process, start
    finally:
        _from_fresh_thread(gateway.shutdown)
        _end(process)
        voice.ended()
        # PySpark keeps a gateway for the next session; this one is gone.
        SparkContext._gateway = None
        SparkContext._jvm = None


class _Voice:
    """What a JVM says on its standard error: kept while it starts, then passed on."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        self.aloud = threading.Event()
        self._kept: deque[str] = deque(maxlen=KEPT_LINES)
        self._thread = threading.Thread(target=self._listen, name="spark-stderr", daemon=True)
        self._thread.start()

    def ended(self) -> str:
        """Wait until nobody can say more; what was kept."""
        self._thread.join(STOP_SECONDS)
        return "".join(self._kept)

    def _listen(self) -> None:
        with os.fdopen(self._read_end, encoding="utf-8", errors="replace") as stream:
            for line in stream:
                if self.aloud.is_set():
                    sys.stderr.write(line)
                else:
                    self._kept.append(line)


def _from_fresh_thread(call: Callable[[], object]) -> None:
    """Talk to the JVM on a connection of its own, for a while at most.

    This thread's connection may have been interrupted between a question and its answer. The
    JVM may also be gone: a terminal sends SIGTERM to both.
    """
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    def guarded() -> None:
        try:
            call()
        except (Py4JError, PySparkException, OSError) as error:
            log.debug("spark was gone before it was stopped", error=type(error).__name__)

    thread = threading.Thread(target=guarded, name="spark-stop", daemon=True)
    thread.start()
    thread.join(STOP_SECONDS)


def _end(process: subprocess.Popen[bytes]) -> None:
    """The JVM ends when its standard input does; it has no more work by now."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        log.warning("spark did not stop; it is killed", pid=process.pid)
        process.kill()
        process.wait()
