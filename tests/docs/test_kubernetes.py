"""The manifest for Kubernetes starts what the code has, and waits for as long as the code needs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml  # type: ignore[import-untyped]

from millwheel import Settings
from millwheel.cli.main import app
from millwheel.runtime.ownership.joining import HAND_OVER_SECONDS
from millwheel.services import http, store_endpoint
from millwheel.services.http import ANSWER_SECONDS

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "docs" / "deploy"
OBJECTS = list(yaml.safe_load_all((DEPLOY / "kubernetes.yaml").read_text("utf-8")))
CLI: Any = typer.main.get_command(app)
LIBPQ = {"PGPASSWORD"}


def the(kind: str, name: str) -> dict[str, Any]:
    found: dict[str, Any]
    (found,) = (
        each for each in OBJECTS if (each["kind"], each["metadata"]["name"]) == (kind, name)
    )
    return found


def pods() -> Iterator[tuple[str, dict[str, Any]]]:
    """Each pod, by the name of its Deployment or Job."""
    for each in OBJECTS:
        if "template" in each.get("spec", {}):
            yield each["metadata"]["name"], each["spec"]["template"]


def container(name: str) -> dict[str, Any]:
    found: dict[str, Any]
    (found,) = dict(pods())[name]["spec"]["containers"]
    return found


def given(name: str) -> dict[str, Any]:
    """The values of a command's options and arguments, as the command line reads them."""
    context = CLI.make_context("millwheel", list(container(name)["args"]))
    _, command, rest = CLI.resolve_command(context, [*context._protected_args, *context.args])
    return dict(command.make_context(command.name, rest, parent=context).params)


def port_of(address: str) -> int:
    return int(address.rpartition(":")[2])


PODS = [name for name, _ in pods()]


def test_there_are_a_migration_workers_and_a_probe_of_the_store() -> None:
    assert PODS == ["millwheel-migrate", "millwheel-worker", "millwheel-store"]


@pytest.mark.parametrize("name", PODS)
def test_a_command_is_one_that_there_is(name: str) -> None:
    assert given(name)


def test_the_ports_are_those_that_the_commands_listen_on() -> None:
    worker = given("millwheel-worker")
    ports = {each["name"]: each["containerPort"] for each in container("millwheel-worker")["ports"]}
    assert ports == {"workers": port_of(worker["listen"]), "http": port_of(worker["http"])}
    assert port_of(worker["advertise"]) == ports["workers"]
    (store,) = container("millwheel-store")["ports"]
    assert store["containerPort"] == port_of(given("millwheel-store")["http"])
    ingress = the("NetworkPolicy", "millwheel-worker")["spec"]["ingress"]
    assert [rule["ports"] for rule in ingress] == [
        [{"port": ports["workers"]}], [{"port": ports["http"]}]
    ]  # fmt: skip
    assert "from" in ingress[0]


@pytest.mark.parametrize(
    ("name", "answered"),
    [
        ("millwheel-worker", {*http._Routes(None, None, None)._paths}),  # type: ignore[arg-type]
        ("millwheel-store", {*re.findall(r"^    (/\w+)", str(store_endpoint.__doc__), re.M)}),
    ],
)
def test_a_probe_asks_for_what_is_answered_and_waits_for_it(name: str, answered: set[str]) -> None:
    probes = [probe for key, probe in container(name).items() if key.endswith("Probe")]
    assert probes
    for probe in probes:
        assert probe["httpGet"]["path"] in answered
        assert probe["httpGet"]["port"] == "http"
        assert probe["timeoutSeconds"] > 2 * ANSWER_SECONDS


def test_a_blocked_worker_lives_until_its_record_is_noted() -> None:
    probe = container("millwheel-worker")["livenessProbe"]
    seconds = probe["periodSeconds"] * (probe["failureThreshold"] - 1)
    assert seconds > Settings().block_limit_seconds
    assert probe["httpGet"]["path"] == "/healthz"
    assert container("millwheel-worker")["readinessProbe"]["httpGet"]["path"] == "/readyz"


@pytest.mark.parametrize("name", PODS)
def test_the_variables_are_read_by_the_code(name: str) -> None:
    (source,) = container(name)["envFrom"]
    secret = the("Secret", source["secretRef"]["name"])["stringData"]
    own = {each["name"] for each in container(name).get("env", [])}
    code = "".join(path.read_text("utf-8") for path in (ROOT / "millwheel").rglob("*.py"))
    for variable in {*secret} - LIBPQ:
        assert f'"{variable}"' in code
    used = set(re.findall(r"\$\((\w+)\)", " ".join(container(name)["args"])))
    assert used == own
    assert "MILLWHEEL_HTTP_TOKENS" in secret  # it listens beyond loopback


def test_the_stop_time_is_that_of_the_other_files_and_enough() -> None:
    seconds = dict(pods())["millwheel-worker"]["spec"]["terminationGracePeriodSeconds"]
    unit = (DEPLOY / "millwheel-worker@.service").read_text("utf-8")
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text("utf-8"))
    assert f"TimeoutStopSec={seconds}\n" in unit
    assert compose["services"]["worker"]["stop_grace_period"] == f"{seconds}s"
    assert seconds > 2 * HAND_OVER_SECONDS


def test_one_worker_goes_at_a_time() -> None:
    deployment = the("Deployment", "millwheel-worker")["spec"]
    labels = deployment["template"]["metadata"]["labels"]
    assert deployment["strategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    budget = the("PodDisruptionBudget", "millwheel-worker")["spec"]
    assert budget["maxUnavailable"] == 1
    assert budget["selector"]["matchLabels"] == labels
    assert deployment["selector"]["matchLabels"] == labels
    others = [template["metadata"]["labels"] for name, template in pods() if "worker" not in name]
    assert labels not in others
