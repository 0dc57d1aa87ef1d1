"""The least rights with which `migrate`, `run` and `worker` do their work: CONNECT on the database,
and USAGE and CREATE on one schema. Where there is no such schema yet, CREATE on the database.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import psycopg
import pytest

from tests.support.servers import VERSIONS, database
from tests.support.shells import MODULE, Shell, expected, lines

pytestmark = pytest.mark.newest

PIPELINE = "wheel"
_numbers = itertools.count(1)

ON_SCHEMA = (
    "GRANT CONNECT ON DATABASE {database} TO {role}",
    "CREATE SCHEMA wheel",
    "GRANT USAGE, CREATE ON SCHEMA wheel TO {role}",
)
ON_DATABASE = ("GRANT CONNECT, CREATE ON DATABASE {database} TO {role}",)

Site = Callable[..., Shell]


@pytest.fixture(params=VERSIONS, ids=[f"pg{version}" for version in VERSIONS])
def site(
    request: pytest.FixtureRequest, postgres_url: Callable[[int], str], tmp_path: Path
) -> Iterator[Site]:
    """Makes a role with some rights in a database of its own, in which nobody has others."""
    (tmp_path / "shop.py").write_text(MODULE)
    with ExitStack() as until, database(postgres_url(request.param)) as url:

        def make(*grants: str) -> Shell:
            parts, role = urlsplit(url), f"least_{request.param}_{next(_numbers)}"
            names = {"database": parts.path[1:], "role": role}
            with psycopg.connect(url, autocommit=True) as owner:
                for text in (
                    "REVOKE ALL ON DATABASE {database} FROM PUBLIC",
                    "REVOKE ALL ON SCHEMA public FROM PUBLIC",
                    "CREATE ROLE {role} LOGIN NOINHERIT",
                    *grants,
                ):
                    owner.execute(text.format(**names).encode())
            until.callback(_drop, url, role)
            _, _, server = parts.netloc.rpartition("@")
            shell = Shell(tmp_path, urlunsplit(parts._replace(netloc=f"{role}@{server}")), PIPELINE)
            until.callback(shell.end)
            return shell

        yield make
        until.close()


def _drop(url: str, role: str) -> None:
    with psycopg.connect(url, autocommit=True) as owner:
        owner.execute("DROP SCHEMA IF EXISTS wheel CASCADE")
        owner.execute(f"DROP OWNED BY {role}".encode())
        owner.execute(f"DROP ROLE {role}".encode())


@pytest.mark.parametrize(
    "grants",
    [
        pytest.param(ON_SCHEMA, id="on a schema"),
        pytest.param(ON_DATABASE, id="on the database", marks=pytest.mark.soak),
    ],
)
def test_these_rights_are_enough_for_run_and_worker(site: Site, grants: tuple[str, ...]) -> None:
    shell = site(*grants)
    rows = lines(300)
    shell.write(rows)
    shell("migrate", "shop:pipeline")
    shell("run", "shop:pipeline", "--keep-open")
    shell.write(more := lines(300, first=300), append=True)
    killed = shell.start("worker", "shop:pipeline")
    killed.until(lambda line: line["event"] == "took")
    killed.process.kill()
    killed.end()
    shell("worker", "shop:pipeline", "--until-done")
    assert shell.counts() == expected(rows, more)
    assert "complete" in shell("status")


@pytest.mark.parametrize("missing", ["CONNECT", "USAGE", "CREATE", "CREATE on the database"])
def test_each_of_them_is_needed(site: Site, missing: str) -> None:
    """And the error names it."""
    connect, make, _ = ON_SCHEMA
    shell = site(
        *{
            "CONNECT": ON_SCHEMA[1:],
            "USAGE": (connect, make, "GRANT CREATE ON SCHEMA wheel TO {role}"),
            "CREATE": (connect, make, "GRANT USAGE ON SCHEMA wheel TO {role}"),
            "CREATE on the database": (connect,),
        }[missing]
    )
    said = shell("migrate", "shop:pipeline", code=7)
    place = "schema wheel" if missing in ("USAGE", "CREATE") else "database"
    assert f"permission denied for {place}" in said
