"""A local Spark session that starts quietly, with bounded resources, and cleans up after itself.

``SparkSession.builder`` lets the JVM print its startup messages to the terminal, and keeps the JVM
until the interpreter ends. Here ``pyspark.java_gateway.launch_gateway`` starts it with its standard
error on a pipe: startup output is shown only if the start fails, later output is relayed.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import structlog

from millwheel.errors import UsageError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

SCRATCH = "millwheel-spark-"
LOCK = "lock"
MASTER = "local[2]"
DRIVER_MEMORY = "1g"
STOP_SECONDS = 15
KEPT_LINES = 100
CHATTER = (
    "Starting Streaming TransformWithState",
    "Streaming TransformWithState",
)
"""Beginnings of lines that Spark's own processes print for each operator."""
SHUFFLE_PARTITIONS = 4
"""Spark's default of 200 is for clusters; each partition costs a task."""

# Spark must start even on a machine whose host name does not resolve.
JVM_OPTIONS = "spark.driver.extraJavaOptions"
LOCAL_SETTINGS = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
LOCAL_ENVIRONMENT = {"SPARK_LOCAL_IP": "127.0.0.1"}

QUICK_COMPILER = "-XX:TieredStopAtLevel=1"
"""Only the JVM's first compiler: where tasks run user code in Python, the second one takes more
than it gives."""

LAUNCHER_ENVIRONMENT = {"SPARK_LAUNCHER_OPTS": QUICK_COMPILER}
"""Options of the JVM that only makes the command line of the other one."""

log = structlog.get_logger("millwheel.spark")


@contextmanager
def session(
    *,
    master: str = MASTER,
    driver_memory: str = DRIVER_MEMORY,
    environment: Mapping[str, str] | None = None,
    config: Mapping[str, str] | None = None,
    launched: Callable[[subprocess.Popen[bytes]], object] | None = None,
    stop_seconds: float = STOP_SECONDS,
) -> Iterator[SparkSession]:
    """Start a Spark session, and stop it at the end of the block.

    Args:
        environment: environment variables for Spark's workers.
        config: Spark settings, which override those of this module.
        launched: called with the JVM's process as soon as it exists, some seconds before the
            session.
        stop_seconds: longest time for the JVM to end.

    Raises:
        UsageError: Java does not start, or this process already has a session.
    """
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    if SparkContext._active_spark_context is not None:
        raise UsageError(
            "this process already has a Spark session: use millwheel.spark.register(spark) and "
            "millwheel.spark.snapshot(…) with it"
        )
    local = master.startswith("local")
    with _scratch() as scratch, ExitStack() as stack:
        home = _home(scratch)
        stack.enter_context(
            _environment(
                LAUNCHER_ENVIRONMENT
                | ({} if home is None else {"SPARK_HOME": str(home)})
                | (LOCAL_ENVIRONMENT if local else {})
                | dict(environment or {})
            )
        )
        settings = _settings(master, driver_memory, str(scratch))
        if local:
            settings |= LOCAL_SETTINGS | {JVM_OPTIONS: QUICK_COMPILER}
        process, start = stack.enter_context(_jvm(settings | dict(config or {}), stop_seconds))
        if launched is not None:
            launched(process)
        # SparkContext installs a Ctrl-C handler that would call the JVM in the middle of another
        # call's answer; the previous handler is restored.
        interrupt = signal.getsignal(signal.SIGINT)
        context = start()
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, interrupt)
        spark: SparkSession | None = None
        try:
            # Failures arrive as exceptions; at level ERROR Spark would log them too, with Java's
            # stack.
            context.setLogLevel("FATAL")
            spark = SparkSession.builder.getOrCreate()
            yield spark
        finally:
            _from_fresh_thread(lambda: _stop(context, spark))


@contextmanager
def _scratch() -> Iterator[Path]:
    """A directory for Spark's files, during the block. Those of killed sessions, whose lock is
    free, are removed."""
    for lock in Path(tempfile.gettempdir()).glob(f"{SCRATCH}*/{LOCK}"):
        with suppress(OSError), open(lock, opener=_open_own) as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(lock.parent, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=SCRATCH) as directory:
        begun = Path(directory) / f"{LOCK}.begun"
        with begun.open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            begun.rename(Path(directory) / LOCK)  # it is locked as soon as others see it
            yield Path(directory)


def _open_own(path: str, flags: int) -> int:
    """Open a file of this user.

    Another user may have put another thing of that name there, such as a FIFO, which would wait.
    `PermissionError` if it is no file, or not this user's.
    """
    found = os.open(path, flags | os.O_NONBLOCK | os.O_NOFOLLOW)
    status = os.fstat(found)
    if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid():
        return found
    os.close(found)
    raise PermissionError(f"{path} is no file of this user")


def _home(scratch: Path) -> Path | None:
    """The SPARK_HOME to start with: one from which Python processes import the installed, compiled
    PySpark. None: the user has an installation of Spark.

    In the home of the package they find ``pyspark.zip`` first, which has no compiled files: each
    start takes 1.9 s of CPU, not 0.7 s, and on a busy machine Spark gives up on a process that has
    not called back after 10 s.
    """
    import pyspark

    if "SPARK_HOME" in os.environ:
        return None
    home = scratch / "spark"
    home.mkdir()
    for part in Path(pyspark.__file__).parent.iterdir():
        if part.name != "python":
            (home / part.name).symlink_to(part)
    return home


def _stop(context: SparkContext, spark: SparkSession | None) -> None:
    context.setLogLevel("OFF")  # cancelled jobs are not errors
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
    package_root = str(Path(__file__).resolve().parents[2])
    # Workers must import this package and the job's module from the same places as this process.
    places = [package_root, os.getcwd(), *filter(None, [os.environ.get("PYTHONPATH")])]
    wanted = {
        # By default workers would use the first python3 on the PATH.
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
    settings: Mapping[str, str], stop_seconds: float
) -> Iterator[tuple[subprocess.Popen[bytes], Callable[[], SparkContext]]]:
    """Yields its process and a function that creates its SparkContext."""
    from py4j.protocol import Py4JError
    from pyspark import SparkConf, SparkContext
    from pyspark.errors import PySparkRuntimeError
    from pyspark.java_gateway import launch_gateway

    conf = SparkConf(loadDefaults=False).setAll(list(settings.items()))
    output = _JvmOutput()
    try:
        gateway = launch_gateway(  # type: ignore[no-untyped-call]
            conf, {"stderr": output.write_end}
        )
    except PySparkRuntimeError as error:
        raise UsageError(f"Spark did not start: {output.wait() or error}") from error
    finally:
        os.close(output.write_end)  # the JVM has its own copy
    process: subprocess.Popen[bytes] = gateway.proc

    def start() -> SparkContext:
        try:
            context = SparkContext(conf=conf, gateway=gateway)
        except Py4JError as error:
            raise UsageError(f"Spark did not start: {error}") from error
        output.relaying.set()
        # It logs each call that a JVM does not answer which is being stopped; its callers get an
        # error.
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
        # It prints a traceback if the JVM ends first, as it does when a terminal or a supervisor
        # signals both.
        counts: Any = context._accumulatorServer
        counts.handle_error = _no_more_counts
        return context

    try:
        yield process, start
    finally:
        _from_fresh_thread(gateway.shutdown)
        _end(process, stop_seconds)
        output.wait()
        # PySpark would reuse the gateway for the next session, but this one is closed.
        SparkContext._gateway = None
        SparkContext._jvm = None


def _no_more_counts(*_: object) -> None:
    log.debug("the JVM has ended before this process")


class _JvmOutput:
    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        self.relaying = threading.Event()
        self._kept: deque[str] = deque(maxlen=KEPT_LINES)
        self._thread = threading.Thread(target=self._listen, name="spark-stderr", daemon=True)
        self._thread.start()

    def wait(self) -> str:
        self._thread.join(STOP_SECONDS)
        return "".join(self._kept)

    def _listen(self) -> None:
        with os.fdopen(self._read_end, encoding="utf-8", errors="replace") as stream:
            for line in stream:
                if self.relaying.is_set():
                    if line.strip() and not line.startswith(CHATTER):
                        sys.stderr.write(line)
                else:
                    self._kept.append(line)


def _from_fresh_thread(call: Callable[[], object]) -> None:
    """Call the JVM from a new thread, and so on a new connection, for at most STOP_SECONDS.

    This thread's connection may have been interrupted between a request and its answer. The JVM may
    also be gone, since a terminal signals both processes.
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


def _end(process: subprocess.Popen[bytes], seconds: float) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        log.warning("spark did not stop; it is killed", pid=process.pid)
        process.kill()
        process.wait()
