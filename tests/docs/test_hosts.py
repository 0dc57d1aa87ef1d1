"""The programs of the pages about FastAPI, Django and Celery: their tests pass, on a Postgres, and
a worker processes the records that they have sent.

Without the package of a page only its pipeline is run (`test_pages`).
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from tests.support.pasted_pages import blocks
from tests.support.typed_commands import environment, running

pytestmark = [pytest.mark.process, pytest.mark.newest, pytest.mark.pages]

HOSTS = Path(__file__).parents[2] / "docs/howto/hosts"
SECONDS = 120
WORKER = 'millwheel worker shop:pipeline --store "$DATABASE_URL"'
DJANGO_WORKER = WORKER.replace("shop:", "pipeline:")
DJANGO_ORDERS = """
from django.test import Client
tea = {"number": 17, "customer": "ann", "cents": 300}
for _ in range(2):
    assert Client().post("/orders", tea, content_type="application/json").status_code == 201
"""
DJANGO_TOTAL = """
from django.test import Client
assert Client().get("/customers/ann").json() == {"cents": 300}
"""
DJANGO_PAGES = """
import asyncio, httpx, asgi
async def look():
    transport = httpx.ASGITransport(asgi.application)
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as web:
        assert 'href="/millwheel/pipelines/shop"' in (await web.get("/millwheel/")).text
        assert (await web.get("/millwheel/pipelines/shop")).status_code == 200
        assert (await web.get("/millwheel/pipelines/shop/do/pause")).status_code == 403
asyncio.run(look())
"""
CELERY_CONFIG = """
broker_url = "filesystem://"
broker_transport_options = {"data_folder_in": "queue", "data_folder_out": "queue"}
"""
CELERY_ORDER = '[18, "ann", 1000]'
_numbers = itertools.count(1)


@pytest.fixture
def database(postgres_url: Callable[[int], str], monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty database, which the programs take from ``DATABASE_URL``."""
    server, name = postgres_url(18), f"host_{next(_numbers)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
        url = urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
        monkeypatch.setenv("DATABASE_URL", url)
        yield url
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


def write(page: str, directory: Path) -> None:
    for block in blocks(HOSTS / f"{page}.md"):
        if block.file is not None:
            path = directory / block.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text, "utf-8")


def check(directory: Path, *command: str) -> None:
    """Run a module with the interpreter of the tests."""
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=directory, env=environment(), text=True,
        capture_output=True, timeout=SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def wait_for(url: str, query: str, expected: list[tuple[object, ...]], log: Path) -> None:
    deadline = time.monotonic() + SECONDS
    with psycopg.connect(url, autocommit=True) as connection:
        while (found := connection.execute(query.encode()).fetchall()) != expected:
            assert time.monotonic() < deadline, f"{found}\n{log.read_text()}"
            time.sleep(0.1)


def test_fastapi(database: str, tmp_path: Path) -> None:
    pytest.importorskip("fastapi")
    directory = tmp_path / "shop"
    write("fastapi", directory)
    check(directory, "pytest", "-q", "-o", "asyncio_mode=auto")
    with running(WORKER, directory, "worker") as log:
        wait_for(database, "SELECT customer, cents FROM shop.totals", [("ann", 600)], log)


def test_django(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("django")
    monkeypatch.setenv("DJANGO_SETTINGS_MODULE", "settings")
    directory = tmp_path / "shop"
    write("django", directory)
    (directory / "orders" / "__init__.py").touch()
    check(directory, "django", "test")
    check(directory, "django", "migrate", "--run-syncdb")
    check(directory, "millwheel", "migrate", "pipeline:pipeline", "--store", database)
    with running(DJANGO_WORKER, directory, "worker") as log:
        check(directory, "django", "shell", "-c", DJANGO_ORDERS)
        wait_for(database, "SELECT customer, cents FROM shop.totals", [("ann", 300)], log)
    check(directory, "django", "shell", "-c", DJANGO_TOTAL)
    check(directory, "django", "shell", "-c", DJANGO_PAGES)


def test_celery(database: str, tmp_path: Path) -> None:
    pytest.importorskip("celery")
    directory = tmp_path / "shop"
    write("celery", directory)
    check(directory, "pytest", "-q", "-o", "asyncio_mode=auto")
    (directory / "queue").mkdir()
    with (directory / "celeryconfig.py").open("a") as config:
        config.write(CELERY_CONFIG)
    with (
        running(WORKER, directory, "worker") as log,
        running(f"{sys.executable} -m celery -A tasks worker -P solo", directory, "tasks") as tasks,
    ):
        check(directory, "celery", "-A", "tasks", "call", "tasks.place", "--args", CELERY_ORDER)
        wait_for(database, "SELECT customer, cents FROM shop.totals", [("ann", 1300)], log)
        wait_for(database, "SELECT customer FROM thanked", [("ann",)], tasks)
