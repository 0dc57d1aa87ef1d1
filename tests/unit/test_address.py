"""What `--store` accepts, and that no text made of an address shows a secret."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest
from psycopg import conninfo

from millwheel.errors import UsageError
from millwheel.store import embedded
from millwheel.store.address import StoreAddress


def test_the_option_wins_over_the_environment_and_both_over_the_default() -> None:
    named = {"MILLWHEEL_STORE": "/srv/wheel"}
    assert StoreAddress.parse("here", named).directory == Path("here")
    assert StoreAddress.parse(None, named).directory == Path("/srv/wheel")
    assert StoreAddress.parse(None, {}).directory == Path(".millwheel")
    assert StoreAddress.parse(None, {"MILLWHEEL_STORE": ""}).directory == Path(".millwheel")


def test_the_process_environment_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MILLWHEEL_STORE", "postgres://db/wheel")
    assert StoreAddress.parse().url == "postgres://db/wheel"


@pytest.mark.parametrize(
    "text",
    [
        ".millwheel/", "a/b", "/srv/x", "./a:b", "./a:5432", "/srv/a=b", "ünï çode", "postgres",
        "postgres/data",
        "./postgres//x", "/srv//x", "./me@home", "./host=db", "hosts", "../postgresql", "a b",
    ],
)  # fmt: skip
def test_a_path_is_a_directory(text: str) -> None:
    parsed = StoreAddress.parse(text)
    assert parsed.embedded
    assert parsed.directory == Path(text)
    assert str(parsed) == str(Path(text))


def test_a_home_directory_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert StoreAddress.parse("~/wheel").directory == Path("/home/someone/wheel")
    with pytest.raises(UsageError, match="cannot be made a path"):
        StoreAddress.parse("~no-such-user/wheel")


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://localhost/wheel",
        "postgres://me:secret@db:5433/wheel?sslmode=require",
        "postgresql://",
        "postgresql:///wheel?host=/run/postgresql",
    ],
)
def test_a_postgres_url_is_opened_as_it_is(text: str) -> None:
    parsed = StoreAddress.parse(text)
    assert not parsed.embedded
    assert parsed.open() == text


def test_the_scheme_may_be_in_capitals() -> None:
    assert StoreAddress.parse("PostgreSQL://db/Wheel").open() == "postgresql://db/Wheel"


def test_opening_a_directory_starts_its_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Path] = []

    def start(directory: Path) -> embedded.EmbeddedServer:
        started.append(directory)
        return embedded.EmbeddedServer("postgresql://x", directory, 18, 1, directory, adopted=False)

    monkeypatch.setattr(embedded, "start", start)
    assert StoreAddress.parse(str(tmp_path)).open() == "postgresql://x"
    assert started == [tmp_path]


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("mysql://me:secret@db/wheel", "mysql:"),
        ("postgresql+psycopg://me:secret@db/wheel", "without a driver"),
        ("postgresql:me:secret", "Write it as postgresql://"),
        ("file:///srv/secret", "the path alone"),
        ("sqlite:secret.db", "sqlite:"),
        ("HTTP://secret", "HTTP:"),
        ("host=db dbname=wheel password=secret", "keyword string"),
        ("host=db dbnam=wheel password=secret", "keyword string"),
        ("dbname = wheel host = secret", "keyword string"),
        ("postgres//secret/x", "mistyped URL"),
        ("postgresql//me:secret@host/x", "mistyped URL"),
        ("postgresql.//secret/x", "mistyped URL"),
        ("Postgres//secret", "mistyped URL"),
        ("postgresql:/secret/x", "Write it as postgresql://"),
        ("postgres:secret", "Write it as postgresql://"),
        ("me@secret:5432/x", "mistyped URL"),
        ("me:secret@host/x", "me:"),
        ("//me:secret@host/x", "mistyped URL"),
        ("://secret/x", "mistyped URL"),
        (" postgresql://secret/x", "mistyped URL"),
        ("localhost:5432", "write postgresql://USER@localhost:5432/DATABASE. A directory"),
        ("127.0.0.1:5432", "write postgresql://USER@127.0.0.1:5432/DATABASE. A directory"),
        ("[::1]:5432", "write postgresql://USER@[::1]:5432/DATABASE. A directory"),
        ("my_db.internal:5432/wheel", "write postgresql://USER@my_db.internal:5432/wheel. A"),
        ("  ", "names no store"),
        ("secret\0", "names no store"),
    ],
)
def test_anything_else_is_refused_without_repeating_secrets(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as refusal:
        StoreAddress.parse(text)
    message = str(refusal.value)
    assert hint in message
    assert "postgresql://user@host" in message
    assert "directory, for an embedded Postgres" in message
    assert "secret" not in message


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:secret@db:port/wheel",
        "postgresql://me:secret%zz@db/wheel",
        "postgresql://me:secret@[::1/wheel",
        "postgresql://me:secret@db/wheel?nonsense=secret",
        "postgresql://me:secret/x@db/wheel",
        "postgresql://me:12/secret@db/wheel",
        "postgresql://me:x@secret@db/wheel",
        "postgresql://me:1/x?secret@db/wheel",
    ],
)
def test_a_url_libpq_cannot_read_is_refused_without_showing_it(text: str) -> None:
    with pytest.raises(UsageError, match=r"MILLWHEEL_STORE .*libpq cannot read") as refusal:
        StoreAddress.parse(None, {"MILLWHEEL_STORE": text})
    assert "secret" not in "".join(traceback.format_exception(refusal.value))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("postgresql://me:secret@db:5433/wheel", "postgresql://me:***@db:5433/wheel"),
        ("postgresql://me:sec?secret@db/w", "postgresql://me:***@db/w"),
        ("postgresql://me:secret@db/w%40x", "postgresql://me:***@db/w%40x"),
        ("postgres://me@db/wheel", "postgresql://me@db/wheel"),
        ("postgresql://db", "postgresql://db"),
        ("postgresql://", "postgresql://"),
        ("postgresql://:secret@db/w", "postgresql://:***@db/w"),
        ("postgresql://m%40e:s%65cret@db/w%2Fheel", "postgresql://m%40e:***@db/w%2Fheel"),
        ("postgresql://me:secret@[::1]:5432/w", "postgresql://me:***@[::1]:5432/w"),
        ("postgresql://me:secret@a:1,b:2/w", "postgresql://me:***@a:1,b:2/w"),
        ("postgresql://db/w?user=me&password=secret", "postgresql://me:***@db/w"),
        ("postgresql://db/w?sslpassword=secret", "postgresql://db/w?sslpassword=***"),
        (
            "postgresql:///w?host=/run/pg&port=5433&password=secret&application_name=a%20b",
            "postgresql://:***@/w?host=/run/pg&port=5433&application_name=a%20b",
        ),
    ],
)
def test_no_text_of_it_shows_a_secret(text: str, shown: str) -> None:
    parsed = StoreAddress.parse(text)
    assert parsed.redacted() == shown
    for written in (str(parsed), repr(parsed), f"{parsed}", f"{[parsed]}"):
        assert shown in written
        assert "secret" not in written
    assert "s%65cret" not in repr(parsed)
    # It is still the same address, but for what is hidden.
    reread = conninfo.conninfo_to_dict(shown)
    secrets = ("password", "sslpassword")
    for name, value in conninfo.conninfo_to_dict(text).items():
        assert reread[name] == ("***" if name in secrets else value)
