"""The pages as an application: figures as HTML and JSON, changes with a reason, errors."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator

import psycopg
import pytest
from psycopg import sql

from millwheel.store.console.inspection import inspect
from millwheel.store.console.roles import make_roles
from millwheel.ui.access import Level, Viewer, ViewerAccess
from tests.support.seen_pages import SeenPages, text_of
from tests.support.store_sites import Owner, PostgresSite

pytestmark = pytest.mark.newest

PagesOf = Callable[..., SeenPages]


@pytest.fixture
async def pages(postgres: PostgresSite, pages_of: PagesOf) -> SeenPages:
    """Of a store with a pipeline that an owner runs."""
    await Owner.take(postgres.store)
    return pages_of(postgres.schema.url)


def test_a_page_and_its_json_have_the_same_figures(
    pages: SeenPages, postgres: PostgresSite
) -> None:
    (found,) = pages.json("/")["pipelines"]
    assert found["name"] == postgres.schema.name
    assert found["workers"] == 1
    assert postgres.schema.name in pages.text("/")
    with inspect(postgres.schema.url) as inspection:
        names = [one.name for one in inspection.status(postgres.schema.name).computations]
    steps = pages.json(f"/pipelines/{postgres.schema.name}")["computations"]
    assert [one["name"] for one in steps] == names
    text = pages.text(f"/pipelines/{postgres.schema.name}")
    assert all(name in text for name in names)


def test_a_page_that_has_not_changed_is_not_sent_again(pages: SeenPages) -> None:
    first = pages.get("/api/pipelines/wheel/log")
    for prefix in ("", "W/"):  # a proxy that compresses makes tags weak
        tag = {"if-none-match": prefix + first.headers["etag"]}
        again = pages.get("/api/pipelines/wheel/log", tag)
        assert (again.status_code, again.content) == (304, b"")


def test_viewers_of_the_same_second_share_a_look(
    pages: SeenPages, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    inspecting = pages.store.inspecting

    def counted() -> object:
        nonlocal looks
        looks += 1
        return inspecting()

    monkeypatch.setattr(pages.store, "inspecting", counted)
    for _ in range(5):
        assert pages.get("/pipelines/wheel").status_code == 200
    assert looks == 1
    pages.get("/pipelines/wheel/log", before=5)
    pages.get("/pipelines/wheel/log", before=6)
    assert looks == 3


def test_a_change_shows_what_it_would_do_and_needs_a_reason(pages: SeenPages) -> None:
    assert "pauses" in pages.foresee("wheel", "pause")
    refused = pages.carry_out("wheel", "pause", reason=" ")
    assert refused.status_code == 400
    assert "say why" in text_of(refused)
    assert pages.json("/pipelines/wheel/log")["batches"] == []
    done = pages.carry_out("wheel", "pause", reason="a test")
    assert (done.status_code, done.headers["location"]) == (303, "/pipelines/wheel/log")
    (entry,) = pages.json("/pipelines/wheel/log")["batches"]
    assert (entry["actor"], entry["reason"], entry["verb"]) == ("ann", "a test", "pause")
    assert "nothing would change" in pages.foresee("wheel", "pause")
    assert "resumes" in pages.foresee("wheel", "resume")
    assert "there is no such injector" in pages.foresee("wheel", "resume", step="nowhere")


def test_who_may_only_look_changes_nothing(
    pages_of: PagesOf, pages: SeenPages, postgres: PostgresSite
) -> None:
    looking = pages_of(postgres.schema.url, ViewerAccess(guests=Viewer("bob", Level.LOOK)))
    assert looking.get("/pipelines/wheel/do/pause").status_code == 403
    refused = looking.carry_out("wheel", "pause", reason="a test")
    assert refused.status_code == 403
    assert "do/pause" not in looking.get("/pipelines/wheel").text
    assert pages.json("/pipelines/wheel/log")["batches"] == []


def test_addresses_that_are_wrong(pages: SeenPages) -> None:
    assert pages.get("/pipelines/nope").status_code == 404
    assert pages.get("/pipelines/wheel/nope").status_code == 404
    assert pages.get("/nope").status_code == 404
    wrong = pages.get("/pipelines/wheel/log", before="x")
    assert wrong.status_code == 400
    assert "before" in text_of(wrong)
    assert pages.get("/api/pipelines/nope").json()["error"]
    assert pages.carry_out("wheel", "pause", reason="x", other="y").status_code == 400


@pytest.fixture
def login_of(postgres: PostgresSite) -> Iterator[Callable[[str | None], str]]:
    """Makes a login with a role of the pipeline, or with none, and gives its URL."""
    roles = make_roles(postgres.schema.url, postgres.schema.name)._asdict()
    made = [*roles.values()]

    def make(role: str | None) -> str:
        name = f"{postgres.schema.name}_{role}_{uuid.uuid4().hex[:8]}"
        with psycopg.connect(postgres.schema.url, autocommit=True) as connection:
            login = sql.Identifier(name)
            made.insert(0, name)
            connection.execute(sql.SQL("CREATE ROLE {} LOGIN").format(login))
            if role is not None:
                granted = sql.Identifier(roles[role])
                connection.execute(sql.SQL("GRANT {} TO {}").format(granted, login))
        return re.sub("//.*?@", f"//{name}@", postgres.schema.url, count=1)

    yield make
    with psycopg.connect(postgres.schema.url, autocommit=True) as connection:
        for name in made:
            connection.execute(sql.SQL("DROP OWNED BY {} CASCADE").format(sql.Identifier(name)))
        for name in made:
            connection.execute(sql.SQL("DROP ROLE {}").format(sql.Identifier(name)))


@pytest.mark.usefixtures("pages")
def test_a_login_without_rights_is_told_its_role(
    pages_of: PagesOf, login_of: Callable[[str | None], str]
) -> None:
    stranger = pages_of(login_of(None))
    assert "a reader's role" in stranger.text("/")
    assert "has a role of" in stranger.text("/pipelines/wheel")
    reader = pages_of(login_of("reader"))
    assert reader.get("/pipelines/wheel").status_code == 200
    refused = reader.carry_out("wheel", "pause", reason="a test")
    assert refused.status_code == 403
    assert "DATABASE_PIPELINE_operator" in text_of(refused)
    operator = pages_of(login_of("operator"))
    done = operator.carry_out("wheel", "pause", reason="a test")
    assert done.status_code == 303, text_of(done)
