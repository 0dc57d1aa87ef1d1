"""The Dockerfile and the compose files keep written rules: there is no Docker where tests run."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import dataclass
from fnmatch import fnmatch
from functools import lru_cache
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]

from millwheel.store.embedded.binaries import MINIMUM_MAJOR
from tests.support.product import ROOT, product_files

DOCKERFILE = ROOT / "docs" / "deploy" / "Dockerfile"
IGNORED = ROOT / "docs" / "deploy" / "Dockerfile.dockerignore"
COMPOSE = (ROOT / "docs" / "deploy" / "compose.yaml", ROOT / "examples" / "compose.yaml")
INSTRUCTIONS = {
    "ADD", "ARG", "CMD", "COPY", "ENTRYPOINT", "ENV", "EXPOSE", "FROM", "HEALTHCHECK", "LABEL",
    "ONBUILD", "RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR",
}  # fmt: skip
OF_A_SERVICE = {
    "build", "command", "depends_on", "deploy", "entrypoint", "environment", "healthcheck", "image",
    "ports", "restart", "shm_size", "stop_grace_period", "ulimits", "volumes", "working_dir",
}  # fmt: skip
"""Keys that these files use of the compose specification; another one may be a slip."""
OF_A_HEALTHCHECK = {"test", "interval", "timeout", "retries", "start_period", "disable"}
CONDITIONS = {"service_started", "service_healthy", "service_completed_successfully"}
PINNED = re.compile(r"[a-z0-9./-]+:(\d+(?:\.\d+)*)(?:-[a-z]+)?")


# -- the Dockerfile -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Instruction:
    name: str
    rest: str


def instructions(text: str) -> list[Instruction]:
    """The instructions of a Dockerfile, without comments; continued lines are one."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    joined = re.sub(r"\\\n", " ", "\n".join(lines))
    parts = [line.split(None, 1) for line in joined.splitlines() if line.strip()]
    return [Instruction(part[0], " ".join(part[1:]).strip()) for part in parts]


def problems_of_dockerfile(text: str, kept: set[str]) -> list[str]:
    """Broken rules; `kept` are the patterns of files that the build sees."""
    found = instructions(text)
    by_name: dict[str, list[str]] = {}
    for one in found:
        by_name.setdefault(one.name, []).append(one.rest)
    problems = [f"{name} is no instruction" for name in by_name if name not in INSTRUCTIONS]
    if not found or found[0].name != "FROM":
        problems.append("it does not begin with FROM")
    problems += [
        f"the image {image} has no version"
        for image in by_name.get("FROM", [])
        if not PINNED.fullmatch(image.split()[0])
    ]
    problems += [
        f"{form} runs a shell, which keeps signals from the worker"
        for form in ("ENTRYPOINT", "CMD")
        for command in by_name.get(form, [])
        if not command.startswith("[")
    ]
    if by_name.get("USER", ["root"])[-1] in ("root", "0"):
        problems.append("it runs as root")
    for copied in by_name.get("COPY", []):
        *sources, _ = [word for word in copied.split() if not word.startswith("--")]
        problems += [
            f"COPY {source}: .dockerignore leaves it out"
            for source in sources
            if source != "." and not any(fnmatch(source, pattern) for pattern in kept)
        ]
    problems += [
        "RUN: pip keeps its cache in the image"
        for step in by_name.get("RUN", [])
        if "pip install" in step and "--no-cache-dir" not in step
    ]
    return problems


def kept_files() -> set[str]:
    return {line[1:] for line in IGNORED.read_text("utf-8").splitlines() if line.startswith("!")}


def test_the_dockerfile_keeps_the_rules() -> None:
    assert problems_of_dockerfile(DOCKERFILE.read_text("utf-8"), kept_files()) == []


def test_the_image_has_a_python_that_the_project_supports() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    (image,) = [
        one.rest for one in instructions(DOCKERFILE.read_text("utf-8")) if one.name == "FROM"
    ]
    match = PINNED.fullmatch(image)
    assert match is not None
    assert f"Programming Language :: Python :: {match[1]}" in project["classifiers"]


def test_the_image_starts_the_command_of_the_package() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    found = instructions(DOCKERFILE.read_text("utf-8"))
    (entry,) = [json.loads(one.rest) for one in found if one.name == "ENTRYPOINT"]
    assert entry[0] in project["scripts"]


@pytest.mark.parametrize(
    ("good", "bad", "problem"),
    [
        ("FROM python:3.13-slim", "FROM python", "the image python has no version"),
        ("FROM python:3.13-slim", "FROM python:latest", "the image python:latest has no version"),
        ("USER millwheel", "USER root", "it runs as root"),
        ("USER millwheel\n", "", "it runs as root"),
        ('ENTRYPOINT ["millwheel"]', "ENTRYPOINT millwheel", "ENTRYPOINT runs a shell"),
        ("COPY . /src", "COPY tests /src", "COPY tests: .dockerignore leaves it out"),
        ("WORKDIR", "WORKDIRR", "WORKDIRR is no instruction"),
        (" --no-cache-dir", "", "pip keeps its cache"),
    ],
)
def test_a_broken_rule_of_the_dockerfile_is_seen(good: str, bad: str, problem: str) -> None:
    text = DOCKERFILE.read_text("utf-8")
    assert good in text
    found = problems_of_dockerfile(text.replace(good, bad, 1), kept_files())
    assert any(problem in one for one in found), found


# -- compose --------------------------------------------------------------------------------------


@lru_cache
def known_variables() -> set[str]:
    """The variables that the product and the examples read."""
    files = [*product_files(), *(ROOT / "examples").rglob("*.py")]
    texts = [file.read_text("utf-8") for file in files]
    named = {name for text in texts for name in re.findall(r"\bMILLWHEEL_[A-Z_]+\b", text)}
    read = {n for text in texts for n in re.findall(r'environ(?:\.get\(|\[)"([A-Z_]+)"', text)}
    options = (ROOT / "examples" / "nexmark" / "options.py").read_text("utf-8")
    prefixed = {f"NEXMARK_{name.upper()}" for name in re.findall(r"^    (\w+):", options, re.M)}
    return named | read | prefixed | {"PGPASSWORD"}


def problems_of_compose(text: str) -> list[str]:
    found = yaml.safe_load(text)
    services: dict[str, dict[str, Any]] = found["services"]
    volumes = found.get("volumes") or {}
    comment = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    problems = [
        f"{name} is not in a comment at the top, and has no default"
        for name in set(re.findall(r"\$\{(\w+):?\?", text))
        if name not in comment
    ]
    for name, service in services.items():
        problems += [f"{name}: {problem}" for problem in _problems_of_service(service, services)]
        for volume in service.get("volumes", []):
            source = volume.partition(":")[0]
            if not source.startswith((".", "/")) and source not in volumes:
                problems.append(f"{name}: the volume {source} is not declared")
    used = {v.partition(":")[0] for s in services.values() for v in s.get("volumes", [])}
    return problems + [f"nothing uses the volume {name}" for name in volumes if name not in used]


def _problems_of_service(service: dict[str, Any], services: dict[str, Any]) -> list[str]:
    problems = [f"{key} is no key of a service" for key in service.keys() - OF_A_SERVICE]
    image = service.get("image")
    if "build" not in service and not PINNED.fullmatch(image or ""):
        problems.append(f"the image {image} has no version")
    major = re.fullmatch(r"postgres:(\d+).*", image or "")
    if major is not None and int(major[1]) < MINIMUM_MAJOR:
        problems.append(f"{image} is older than Postgres {MINIMUM_MAJOR}")
    problems += [
        f"the port {port} is open to other machines"
        for port in service.get("ports", [])
        if not re.fullmatch(r"127\.0\.0\.1:\d+:\d+", str(port))
    ]
    check = service.get("healthcheck", {})
    problems += [f"{key} is no key of a healthcheck" for key in check.keys() - OF_A_HEALTHCHECK]
    needed = service.get("depends_on", {})
    for other, how in needed.items():
        if other not in services:
            problems.append(f"it depends on {other}, which is not there")
        elif how["condition"] not in CONDITIONS:
            problems.append(f"{how['condition']} is no condition")
        elif how["condition"] == "service_healthy" and "healthcheck" not in services[other]:
            problems.append(f"it waits for {other} to be healthy, which has no healthcheck")
    of_another = "build" not in service and not str(image).startswith("python:")
    variables = () if of_another else service.get("environment", {})
    problems += [f"nothing reads {name}" for name in variables if name not in known_variables()]
    return problems


@pytest.mark.parametrize("path", COMPOSE, ids=lambda path: path.parent.name)
def test_the_compose_files_keep_the_rules(path: Path) -> None:
    assert problems_of_compose(path.read_text("utf-8")) == []


@pytest.mark.parametrize(
    ("good", "bad", "problem"),
    [
        ("image: postgres:18", "image: postgres", "postgres: the image postgres has no version"),
        ("image: postgres:18", "image: postgres:13", "is older than Postgres"),
        ("  data:\n", "  dat:\n", "the volume data is not declared"),
        ("  data:\n", "  data:\n  more:\n", "nothing uses the volume more"),
        ("MILLWHEEL_SECRET: $", "MILLWHEEL_SECRETS: $", "nothing reads MILLWHEEL_SECRETS"),
        ("NEXMARK_GENERATORS", "NEXMARK_GENERATOR", "nothing reads NEXMARK_GENERATOR"),
        ("    shm_size", "    shmsize", "shmsize is no key of a service"),
        ("      retries: 30", "      retry: 30", "retry is no key of a healthcheck"),
        ("service_completed_successfully", "service_done", "service_done is no condition"),
        ("MILLWHEEL_HTTP_TOKENS=…\n", "\n", "MILLWHEEL_HTTP_TOKENS is not in a comment"),
        ("    shm_size: 256mb", '    ports: ["5432:5432"]', "5432:5432 is open to other machines"),
        ("      postgres:\n        cond", "      database:\n        cond", "depends on database"),
    ],
)
def test_a_broken_rule_of_a_compose_file_is_seen(good: str, bad: str, problem: str) -> None:
    text = COMPOSE[0].read_text("utf-8")
    assert good in text
    found = problems_of_compose(text.replace(good, bad, 1))
    assert any(problem in one for one in found), found


def test_the_commands_of_the_example_are_there() -> None:
    """`tests/docs/test_deploy.py` looks at those of docs/deploy."""
    command = yaml.safe_load(COMPOSE[1].read_text("utf-8"))["services"]["worker"]["command"]
    extras = re.findall(r"/tmp/app\[([\w,]+)\]", command)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert set(extras[0].split(",")) <= project["optional-dependencies"].keys()
    assert "python -m examples.shop topics" in command
    assert "millwheel migrate shop" in command
    assert "millwheel worker examples.shop:pipeline --ingest 0.0.0.0:8080" in command
