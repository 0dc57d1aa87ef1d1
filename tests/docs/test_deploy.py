"""The files of docs/deploy, and the pages about them, say what is so, as far as a machine without
Docker can tell."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml  # type: ignore[import-untyped]
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from millwheel.cli.main import app
from millwheel.errors import DeployRefused, SchemaBehind, UsageError
from millwheel.services import http
from millwheel.services.metrics import exposition
from millwheel.services.store_endpoint import StoreLook, StoreMetrics
from millwheel.services.worker_figures import ComputationFigures
from millwheel.store.console.inspection import Operating
from tests.support.figures import some_figures, some_status

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "docs" / "deploy"
UNIT = DEPLOY / "millwheel-worker@.service"
RUN = ROOT / "docs" / "howto" / "run"
PAGES = re.sub(
    r"\\\n\s*", "", "\n".join(page.read_text() for page in sorted(RUN.glob("*.md")))
)  # a command may continue on the next line
WATCH = (RUN / "watch.md").read_text()
COMPOSE = (DEPLOY / "compose.yaml").read_text()


def commands() -> list[list[str]]:
    """Every command line of millwheel's in the files there."""
    found = re.findall(r"^ExecStart=\S+/millwheel (.*)$", UNIT.read_text(), re.MULTILINE)
    found += re.findall(r"^    command: (?!postgres )(.*)$", COMPOSE, re.MULTILINE)
    found += re.findall(r"--rm migrate (status .*)$", COMPOSE, re.MULTILINE)
    found += re.findall(r"^ *[#$] millwheel (.*?)(?: +#.*)?$", PAGES, re.MULTILINE)
    found += re.findall(r"`millwheel (\w[^`]*)`", PAGES)
    return [shlex.split(line) for line in found]


def options(line: list[str]) -> set[str]:
    program: Any = typer.main.get_command(app)
    found, common = program, program.params
    for word in line:
        if not hasattr(found, "commands"):
            break
        if word not in found.commands:
            pytest.fail(f"there is no `millwheel {word}`")
        found = found.commands[word]
    return {"--help"}.union(*(option.opts for option in (*found.params, *common)))


def test_there_are_commands_to_look_at() -> None:
    names = [line[0] for line in commands()]
    assert names.count("worker") >= 4
    assert names.count("migrate") >= 3
    assert {"status", "run", "intervals", "pause", "resume", "remove"} <= set(names)


@pytest.mark.parametrize("line", commands(), ids=" ".join)
def test_the_commands_are_there(line: list[str]) -> None:
    asked = {argument for argument in line if argument.startswith("--")}
    assert asked <= options(line)


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("there is no systemd-analyze on this machine")
    text = UNIT.read_text().replace("/opt/millwheel/bin/millwheel", "/bin/true")
    (tmp_path / UNIT.name).write_text(text)
    result = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", tmp_path / "millwheel-worker@1.service"],
        capture_output=True,
        text=True,
    )
    told = [line for line in result.stderr.splitlines() if "millwheel" in line]
    assert (result.returncode, told) == (0, [])


def test_what_a_restart_does_not_mend_is_not_restarted() -> None:
    (codes,) = re.findall(r"^RestartPreventExitStatus=(.*)$", UNIT.read_text(), re.MULTILINE)
    wrong = (UsageError, SchemaBehind, DeployRefused)
    assert {int(code) for code in codes.split()} == {error.exit_code for error in wrong}


def test_the_compose_file_is_one() -> None:
    yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
    found = yaml.safe_load(COMPOSE)
    assert set(found["services"]) == {"postgres", "migrate", "worker"}
    worker = found["services"]["worker"]
    assert worker["environment"]["MILLWHEEL_STORE"].startswith("postgresql://")
    assert "MILLWHEEL_SECRET" in worker["environment"]
    for name, condition in worker["depends_on"].items():
        assert name in found["services"]
        if condition["condition"] == "service_healthy":
            assert "healthcheck" in found["services"][name]
    dockerfile = ROOT / worker["build"]["dockerfile"]
    assert dockerfile == DEPLOY / "Dockerfile"
    assert (DEPLOY / worker["build"]["context"]).resolve() == ROOT


def test_the_health_check_asks_what_is_answered() -> None:
    port, path = re.findall(r"http://127\.0\.0\.1:(\d+)(/\w+)'", COMPOSE)[0]
    assert f"--http 0.0.0.0:{port}" in COMPOSE
    assert path == "/readyz"


def test_the_image_gets_what_the_package_is_made_of() -> None:
    kept = (DEPLOY / "Dockerfile.dockerignore").read_text()
    wanted = {name.removeprefix("!") for name in re.findall(r"^!.*$", kept, re.MULTILINE)}
    links = {path.name for path in (ROOT / "millwheel").iterdir() if path.is_symlink()}
    assert wanted == {
        "LICENSE", "README.md", "pyproject.toml", "requirements.lock", "millwheel", "examples",
        *links
    }  # fmt: skip


@pytest.mark.process
def test_the_image_and_the_recipe_install_the_locked_versions(tmp_path: Path) -> None:
    found = {
        script
        for text in ((DEPLOY / "Dockerfile").read_text(), (RUN / "systemd.md").read_text())
        for script in re.findall(r"sed -n '([^']+)' \S*requirements.lock", text)
    }
    (script,) = found
    lock = ROOT / "requirements.lock"
    told = subprocess.run(["sed", "-n", script, lock], capture_output=True, text=True, check=True)
    pinned = [line.partition("==")[0] for line in told.stdout.splitlines()]
    assert len(pinned) == len(re.findall(r"^[a-z].*==", lock.read_text(), re.MULTILINE))
    assert {"psycopg", "msgspec", "uvloop", "tzdata"} <= set(pinned)
    assert not any("--hash" in line or line.endswith("\\") for line in told.stdout.splitlines())


def test_the_paths_and_metrics_that_are_named_are_there() -> None:
    named = set(re.findall(r"`(/\w+)` \|", WATCH))
    answers = http._Routes(None, None, None)  # type: ignore[arg-type]
    assert named == set(answers._paths)
    text = exposition(some_figures())[0].decode()
    metrics = {name for name in re.findall(r"`(millwheel_\w+)`", PAGES) if "_store_" not in name}
    assert metrics
    for metric in metrics:
        assert f"\n# HELP {metric} " in text


# -- alerts and the dashboard -----------------------------------------------------------------

ALERTS = yaml.safe_load((DEPLOY / "alerts.yaml").read_text())
RULES = [rule for group in ALERTS["groups"] for rule in group["rules"]]
DASHBOARD = json.loads((DEPLOY / "grafana.json").read_text())
EXPRESSIONS = [
    *(rule["expr"] for rule in RULES),
    *(target["expr"] for panel in DASHBOARD["panels"] for target in panel["targets"]),
    DASHBOARD["templating"]["list"][0]["query"],
]
METRIC = re.compile(r"\b(?:millwheel|process)_[a-z0-9_]+")


def metrics_with_labels() -> dict[str, set[str]]:
    """The labels of every metric that a worker or a store's endpoint serves, by its name."""
    text, _ = exposition(replace(some_figures(), computations=full_computations()))
    text += generate_latest(
        StoreMetrics(
            [StoreLook(some_status("one"), Operating(2, {"state": 100}, {"state": 3}, 5.0))]
        )
    )
    families = text_string_to_metric_families(text.decode())
    found: dict[str, set[str]] = {}
    for sample in (sample for family in families for sample in family.samples):
        found.setdefault(sample.name, set()).update(sample.labels)
    return found


def full_computations() -> tuple[ComputationFigures, ...]:
    """Computations that have every figure."""
    lines, windows = some_figures().computations
    return replace(lines, lag_rows=7, lag_bytes=70, latency_target_seconds=0.5), windows


@pytest.mark.parametrize("expression", EXPRESSIONS)
def test_an_expression_asks_for_metrics_and_labels_that_there_are(expression: str) -> None:
    known = metrics_with_labels()
    asked = METRIC.findall(expression)
    assert asked
    assert set(asked) <= set(known)
    for name, chosen in re.findall(r"(\w+)\{([^}]*)\}", expression):
        if name in known:
            assert set(re.findall(r"(\w+)=~?", chosen)) <= known[name]


def test_each_alert_says_what_and_what_to_do() -> None:
    assert len({rule["alert"] for rule in RULES}) == len(RULES) >= 8
    for rule in RULES:
        assert set(rule["annotations"]) == {"summary", "runbook"}, rule["alert"]
        page = rule["annotations"]["runbook"].partition(";")[0]
        assert f"`{rule['alert']}`" in (ROOT / page).read_text(), page
        assert rule["labels"]["severity"] in ("page", "ticket")
        for command in re.findall(r"`millwheel ([^`]*)`", rule["annotations"]["runbook"]):
            line = shlex.split(command)
            assert {word for word in line if word.startswith("--")} <= options(line)
