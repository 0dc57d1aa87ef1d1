"""``millwheel new``: each template is a project that runs, is tested and typed, as it is made."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml  # type: ignore[import-untyped]
from typer.testing import CliRunner

from millwheel.cli.main import app
from millwheel.cli.project_templates import TEMPLATES, commands_of
from millwheel.store import embedded
from tests.support.typed_commands import environment, run

SECONDS = 120.0


class Project:
    """A project that the command has made, and commands in its directory."""

    def __init__(self, parent: Path, template: str) -> None:
        self.template = template
        self.name = f"my_{template}"
        self.directory = parent / f"My-{template}"
        self.printed = self._run_at(parent, f"millwheel new My-{template} --template {template}")

    def run(self, command: str) -> str:
        return self._run_at(self.directory, command)

    @staticmethod
    def _run_at(directory: Path, command: str) -> str:
        return run(command, directory)

    def text(self, file: str) -> str:
        return (self.directory / file).read_text("utf-8")

    def rows(self, statement: str, store: str = "store") -> list[dict[str, Any]]:
        printed = self.run(f'millwheel sql "{statement}" --store {store} --format json')
        found: list[dict[str, Any]] = json.loads(printed)
        return found

    @contextmanager
    def running(self, arguments: str) -> Iterator[subprocess.Popen[bytes]]:
        """A ``millwheel run`` in the background; it ends with the block, and so does its server."""
        with (self.directory.parent / "log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", "millwheel", "run", *arguments.split()],
                cwd=self.directory, env=environment(), stdin=subprocess.DEVNULL, stdout=log,
                stderr=log,
            )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.wait(SECONDS)

    def wait_for(self, statement: str, least: int, process: subprocess.Popen[bytes]) -> None:
        """Wait until a number in the store is at least this."""
        deadline = time.monotonic() + SECONDS
        while self._number(statement) < least:
            assert process.poll() is None, (self.directory.parent / "log").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.02)

    def _number(self, statement: str) -> int:
        url = embedded.status(self.directory / "store").url
        if url is None:
            return 0
        with (
            suppress(psycopg.OperationalError, psycopg.errors.UndefinedTable),
            psycopg.connect(url) as connection,
        ):
            row = connection.execute(statement.encode()).fetchone()
            return 0 if row is None else int(row[0] or 0)
        return 0

    def stop(self) -> None:
        self.run("millwheel stop store")


@pytest.fixture(scope="module", params=TEMPLATES)
def project(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Project:
    return Project(tmp_path_factory.mktemp(request.param), request.param)


@pytest.fixture(scope="session")
def types_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """mypy's, which all projects share: they import the same packages."""
    return tmp_path_factory.mktemp("mypy")


def test_no_name_of_the_template_is_left(project: Project) -> None:
    assert project.directory.is_dir()
    for path in project.directory.iterdir():
        text = path.name + path.read_text("utf-8")
        assert "your_" not in text.replace("your_pipeline", ""), path


def test_its_own_tests_pass(project: Project) -> None:
    assert " passed" in project.run("pytest -q -p no:cacheprovider")


def test_its_types_are_right(project: Project, types_cache: Path) -> None:
    assert tomllib.loads(project.text("pyproject.toml"))["tool"]["mypy"]["strict"]
    assert "no issues found" in project.run(f"mypy --cache-dir {types_cache}")


def test_its_graph_is_checked(project: Project) -> None:
    target = TEMPLATES[project.template].target.format(project.name)
    assert f"pipeline {project.name}" in project.run(f"millwheel graph {target}")


def test_it_names_what_it_needs(project: Project) -> None:
    described = tomllib.loads(project.text("pyproject.toml"))["project"]
    extras = ",".join(TEMPLATES[project.template].extras)
    assert described["name"] == project.name.replace("_", "-")
    assert described["dependencies"] == [f"millwheel-engine[{extras}]"]
    assert ".gitignore" in {path.name for path in project.directory.iterdir()}


def test_its_containers_run_commands_that_there_are(project: Project) -> None:
    services = yaml.safe_load(project.text("compose.yaml"))["services"]
    assert {"postgres", "worker"} <= services.keys()
    assert ("kafka" in services) == (project.template == "kafka")
    worker = services["worker"]
    assert worker["depends_on"].keys() <= services.keys()
    assert worker["environment"]["MILLWHEEL_STORE"].startswith("postgresql://")
    target = TEMPLATES[project.template].target.format(project.name)
    assert f"millwheel migrate {target} && exec millwheel worker {target}" in worker["command"]
    if project.template == "kafka":
        roles = services["kafka"]["environment"]["KAFKA_PROCESS_ROLES"]
        assert roles == "broker,controller"  # without ZooKeeper


def test_it_prints_what_to_try_next(project: Project) -> None:
    page = project.text("README.md")
    shown = [*commands_of(page, "Try it"), *commands_of(page, "Kill it")]
    lines = [line.strip() for line in project.printed.splitlines()]
    assert {line.strip() for line in shown} <= {*lines}
    assert f"cd {project.directory.name}" in lines
    for words in ("millwheel run", "millwheel sql", "millwheel dev", "kill -9", "pytest", "mypy"):
        assert any(words in line for line in shown), words


# -- their results ---------------------------------------------------------------------------------


def words_of(project: Project) -> Counter[str]:
    lines = project.text("searches.jsonl").splitlines()
    return Counter(word for line in lines for word in json.loads(line)["query"].split())


def counted(project: Project, statement: str, store: str) -> Counter[str]:
    return Counter({row["name"]: int(row["n"]) for row in project.rows(statement, store)})


MINUTES = "SELECT word AS name, sum(searches) AS n FROM minutes GROUP BY word"
LATE = "SELECT word AS name, count(*) AS n FROM late_words GROUP BY word"


def test_counts_of_the_file_that_comes_with_it(reachable_path: Path) -> None:
    project = Project(reachable_path, "counts")
    assert "complete" in project.run("millwheel run my_counts:pipeline --store store")
    assert counted(project, MINUTES, "store") == words_of(project)
    assert project.rows("SELECT min(minute) AS minute, count(*) AS n FROM minutes")[0]["n"] > 20


@pytest.mark.parametrize("made", [pytest.param(False, marks=pytest.mark.soak), True])
def test_late_data_as_its_page_shows_it(made: bool, reachable_path: Path) -> None:
    """With the input that comes with it, and with one that was made before."""
    project = Project(reachable_path, "counts")
    if made:
        project.run("python make_searches.py 500")
    for command in commands_of(project.text("README.md"), "Late data"):
        printed = project.run(command)
    assert printed.count("2024-01-01 09:00:05") == 2  # "black" and "cat"
    assert counted(project, MINUTES, "open") + counted(project, LATE, "open") < words_of(project)


def test_counts_are_exact_when_the_run_is_killed(reachable_path: Path) -> None:
    project = Project(reachable_path, "counts")
    project.run("python make_searches.py 60000")
    with project.running("my_counts:pipeline --store store") as process:
        project.wait_for("SELECT sum(searches) FROM my_counts.trends", 2_000, process)
    assert process.returncode == -9
    project.run("millwheel run my_counts:pipeline --store store")
    (total,) = project.rows("SELECT sum(searches) AS n, count(*) AS queries FROM trends")
    assert (int(total["n"]), total["queries"]) == (60_000, 6)
    assert counted(project, MINUTES, "store") + counted(project, LATE, "store") == words_of(project)
    project.stop()


def test_unpaid_orders_are_marked_and_reported_once(reachable_path: Path) -> None:
    project = Project(reachable_path, "orders")
    module = project.directory / "my_orders.py"
    module.write_text(module.read_text().replace("timedelta(seconds=20)", "timedelta(seconds=3)"))
    with project.running("my_orders:pipeline --store store") as process:
        project.wait_for("SELECT count(*) FROM my_orders.stream", 1, process)
        printed = project.run('python shop.py "$(millwheel url --store store)"')
        assert "not paid: [5, 10]" in printed
    with project.running("my_orders:pipeline --store store") as process:
        project.wait_for("SELECT count(*) FROM my_orders.unpaid", 2, process)
        found = project.rows("SELECT number, missing FROM unpaid ORDER BY number")
        assert found == [{"number": 5, "missing": 500}, {"number": 10, "missing": 1000}]
        states = project.rows("SELECT number, state FROM public.orders ORDER BY number")
        assert [row["state"] for row in states] == [*(["paid"] * 4 + ["unpaid"]) * 2]
    project.stop()


def test_queries_of_the_file_that_comes_with_it(reachable_path: Path) -> None:
    project = Project(reachable_path, "sql")
    assert "complete" in project.run("millwheel run my_sql.sql --store store")
    visits = len(project.text("visits.jsonl").splitlines())
    for table in ("minutes", "stays"):
        (row,) = project.rows(f"SELECT sum(visits) AS n FROM {table}")
        assert int(row["n"]) == visits
    assert len(project.rows("SELECT DISTINCT visitor FROM stays")) == 4
    assert len(project.rows("SELECT 1 FROM stays")) == 8


# -- names and directories -------------------------------------------------------------------------


def refusal(*words: str) -> str:
    done = CliRunner().invoke(app, ["new", *words])
    assert done.exit_code == 2, done.output
    return done.stderr


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("json", "Python's standard library has a module of that name"),
        ("pytest", "a package of that name is installed"),
        ("millwheel", "a package of that name is installed"),
        ("class", "that is a word of Python"),
        ("shop", "a file of a template has that name"),
        ("2024", "a name begins with a letter"),
        ("pg_stat", "Postgres reserves that schema name"),
        ("n" * 49, "48 characters at the most"),
    ],
)
def test_a_name_that_something_has_is_refused(name: str, reason: str, tmp_path: Path) -> None:
    assert reason in refusal(str(tmp_path / name))
    assert not (tmp_path / name).exists()


def test_a_name_is_made_of_that_of_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "a" / "My shop.de"
    assert CliRunner().invoke(app, ["new", str(directory)]).exit_code == 0
    assert (directory / "my_shop_de.py").is_file()
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / ".git").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert CliRunner().invoke(app, ["new", "."]).exit_code == 0
    assert (tmp_path / "here" / "here.py").is_file()


def test_a_directory_with_files_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    directory = tmp_path / "trends"
    directory.mkdir()
    for name in "abcde":
        (directory / name).touch()
    found = refusal(str(directory))
    assert "it has a, b, c and 2 more. Give the name of a new directory, or empty this" in found
    assert sorted(path.name for path in directory.iterdir()) == [*"abcde"]
    assert "cannot be written" in refusal(str(directory / "a" / "below_a_file"))
