"""The pages as an application: figures as HTML and JSON, changes with a reason, errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from millwheel.store.console.inspection import inspect
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
    tag = {"if-none-match": first.headers["etag"]}
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
