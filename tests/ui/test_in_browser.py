"""The pages in Chromium: they fit the window, everybody can use them, and they follow the store."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import msgspec
import psycopg
import pytest
from selenium.webdriver.common.keys import Keys

from millwheel.store.console.administration import pause, transaction
from millwheel.store.console.asking import Actor, Asking
from millwheel.ui.access import Viewer, ViewerAccess
from millwheel.ui.pages import PAGES
from millwheel.ui.verbs import VERBS
from tests.support.browsed_store import SHOP, BrowsedStore
from tests.support.browsers import PLAIN_HOST, Browser
from tests.support.hostile_texts import SECRET_KEY
from tests.support.page_addresses import crawl
from tests.support.seen_pages import ANN, SeenPages

CROSSED = [(360, False), (1_600, True)]
"""Width in pixels, and whether it is dark: both widths, and both themes."""

WINDOWS = [(360, False), (360, True), (1_600, False), (1_600, True)]

LOG = f"/pipelines/{SHOP}/log"
STEPS = f"/pipelines/{SHOP}"

ADDRESSES_OF_A_PAGE = 2
"""Most kinds of addresses of a page that are looked at: with other filters it shows other parts."""

ADDRESSES_IN_SOAK = 12


class Visitors:
    """Requests that have reached the server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.requests = 0
        self.with_tag = 0

    def host(self, client: str, headers: Mapping[str, str]) -> Viewer | None:
        with self._lock:
            self.requests += 1
            self.with_tag += "if-none-match" in headers
        return ANN


@pytest.fixture(scope="module")
def seen(shop: BrowsedStore) -> Iterator[SeenPages]:
    found = SeenPages(shop.url)
    yield found
    found.close()


@pytest.fixture(scope="module")
def addresses(seen: SeenPages) -> dict[str, list[str]]:
    """Those that the pages lead to, by the name of a page or of a verb."""
    found: dict[str, list[str]] = {"": [f"/pipelines/{SHOP}"], "overview": ["/"]}
    for name in PAGES:
        found.setdefault(name, [f"/pipelines/{SHOP}/{name}"])
    for name in VERBS:
        found[f"do/{name}"] = []
    for address in crawl(seen.client, "/"):
        parts = urlsplit(address).path.split("/", 3)
        if len(parts) == 4 and parts[1] == "pipelines":
            known = found.setdefault(parts[3], [])
            if len(known) < ADDRESSES_IN_SOAK and address not in known:
                known.append(address)
    for name in VERBS:
        found[f"do/{name}"] = found[f"do/{name}"] or [f"/pipelines/{SHOP}/do/{name}"]
    return found


NAMES = ["overview", *PAGES, *(f"do/{name}" for name in VERBS)]


@pytest.mark.parametrize("name", NAMES)
def test_a_page_in_each_window(
    name: str, browser: Browser, seen: SeenPages, addresses: dict[str, list[str]]
) -> None:
    most = 1 if name.startswith("do/") else ADDRESSES_OF_A_PAGE
    for address in addresses[name][:most]:
        see(browser, seen, address, CROSSED)


@pytest.mark.soak
@pytest.mark.parametrize("name", NAMES)
def test_all_addresses_in_all_windows(
    name: str, browser: Browser, seen: SeenPages, addresses: dict[str, list[str]]
) -> None:
    for address in addresses[name]:
        see(browser, seen, address, WINDOWS)


def see(browser: Browser, seen: SeenPages, address: str, windows: list[tuple[int, bool]]) -> None:
    """The page fits, breaks no rule of accessibility, and the browser has nothing to complain
    of."""
    browser.open(seen.at(address))
    assert browser.text("h1")
    for width, dark in windows:
        browser.resize(width, dark=dark)
        window = f"{address} at {width} pixels, {'dark' if dark else 'light'}"
        assert browser.overflow() == 0, window
        assert browser.barriers() == [], window
    assert browser.complaints() == [], address
    ran = "return [window.ran || 0, document.querySelectorAll('.foreign').length]"
    assert browser.run(ran) == [0, 0], address


@pytest.mark.parametrize("name", NAMES)
def test_tab_leads_to_everything_in_order(
    name: str, browser: Browser, seen: SeenPages, addresses: dict[str, list[str]]
) -> None:
    """In the order of the text, and where one is can be seen."""
    for width in (360,) if name.startswith("do/") else (360, 1_600):
        browser.open(seen.at(addresses[name][:2][-1]), width=width)
        browser.stand_still()
        stops = browser.tab_stops()
        assert [stop["at"] for stop in stops] == browser.reachable(), stops
        assert [stop for stop in stops if not stop["marked"] or not stop["inside"]] == []
        assert stops[0]["name"] == "Skip to the content"


def test_the_link_past_the_navigation(browser: Browser, seen: SeenPages) -> None:
    browser.open(seen.at(LOG))
    browser.press(Keys.TAB)
    browser.press(Keys.ENTER)
    assert browser.run("return document.activeElement.id") == "content"
    browser.press(Keys.TAB)
    assert browser.run("return document.querySelector('main').contains(document.activeElement)")


LETTERS = "SELECT id::text FROM dead_letter WHERE parked IS DISTINCT FROM 'waiting' ORDER BY 1"


@pytest.mark.parametrize(
    ("address", "column", "statement"),
    [
        ("/", "dead letters", f"SELECT count(*)::text FROM ({LETTERS}) AS l"),
        ("/", "parked keys", "SELECT count(*)::text FROM parked_keys"),
        (f"{LOG}?verb=pause", "batch", "SELECT batch::text FROM request WHERE verb = 'pause'"),
        (f"{STEPS}/late", "step", "SELECT name FROM computation"),
        (f"{STEPS}/letters", "number", LETTERS),
        (
            f"{STEPS}/letters?group=key",
            "letters",
            "SELECT count(*)::text FROM dead_letter WHERE parked IS DISTINCT FROM 'waiting' "
            "GROUP BY computation, key",
        ),
        (f"{STEPS}/workers", "process", "SELECT pid::text FROM worker WHERE NOT stopped"),
        (
            f"{STEPS}/workers",
            "intervals",
            "SELECT count(*)::text FROM key_interval WHERE owner IS NOT NULL GROUP BY owner",
        ),
        (
            f"{STEPS}/timers",
            "by event time",
            "SELECT count(*)::text FROM timers WHERE kind = 'watermark' GROUP BY computation",
        ),
        (
            f"{STEPS}/sql?statement=SELECT+key+AS+k+FROM+states+ORDER+BY+slot+LIMIT+3",
            "k",
            "SELECT key::text FROM states ORDER BY slot LIMIT 3",
        ),
    ],
)
def test_a_page_says_what_the_store_says(
    address: str, column: str, statement: str, browser: Browser, seen: SeenPages, shop: BrowsedStore
) -> None:
    browser.open(seen.at(address))
    shown, found = browser.column(column), [text for (text,) in shop.read(statement)]
    assert found
    assert sorted(text.replace(",", "") for text in shown) == sorted(found)


def test_a_key_has_the_state_of_the_store(
    browser: Browser, seen: SeenPages, shop: BrowsedStore
) -> None:
    key = msgspec.json.encode(SECRET_KEY).decode()
    browser.open(seen.at(f"{STEPS}/key?{urlencode({'step': 'add_up', 'key': key})}"))
    text = (
        "SELECT value FROM states WHERE computation = 'add_up' AND key = %s::jsonb AND entry = ''"
    )
    ((state,),) = shop.read(text, key)
    assert msgspec.json.decode(browser.text("pre")) == state


def test_the_steps_are_those_of_the_store(
    browser: Browser, seen: SeenPages, shop: BrowsedStore
) -> None:
    browser.open(seen.at(STEPS))
    browser.until_text("paused")
    names = shop.read("SELECT name FROM computation ORDER BY name")
    shown = [text.split()[0] for text in browser.column("step")]  # before "paused", "parked"
    assert sorted(shown) == [name for (name,) in names]
    processed = dict(zip(shown, browser.column("processed"), strict=True))
    done = "SELECT (SELECT count(*) FROM sold) + count(*) FROM dead_letter WHERE "
    failed = "parked IS NULL AND key IS NOT NULL"
    assert processed["add_up"] == f"{shop.number(done + failed):,}"


# -- a change by keyboard alone --------------------------------------------------------------


def change_by_keyboard(browser: Browser, url: str, verb: str, reason: str) -> None:
    """From a page that has a button for a change to the log."""
    browser.open(url)
    browser.tab_to(browser.text(f"a.verb[href*='/do/{verb}']"))
    browser.press(Keys.ENTER)
    browser.until(lambda: VERBS[verb].title == browser.text("h1"), "the page of the change")
    browser.tab_to("reason")
    browser.press(reason)
    browser.tab_to(VERBS[verb].title)
    browser.press(Keys.ENTER)
    browser.until_text(reason)
    assert urlsplit(browser.driver.current_url).path == LOG


def test_a_change_by_keyboard_alone(browser: Browser, seen: SeenPages, shop: BrowsedStore) -> None:
    try:
        change_by_keyboard(browser, seen.at(STEPS), "resume", "nobody has a mouse")
        assert shop.read("SELECT reason FROM request ORDER BY id DESC LIMIT 1") == [
            ("nobody has a mouse",)
        ]
        change_by_keyboard(browser, seen.at(STEPS), "pause", "and still not")
    finally:
        pause(shop.url, SHOP)
    assert browser.column("reason")[:2] == ["and still not", "nobody has a mouse"]


def test_a_change_and_a_question_over_plain_http(
    browser: Browser, shop: BrowsedStore, pages_of: Callable[..., SeenPages]
) -> None:
    """From other machines browsers tell a server less of a request than on this one."""
    seen = pages_of(shop.url, ViewerAccess(host=Visitors().host))
    host = f"http://{PLAIN_HOST}:{seen.port}"
    try:
        change_by_keyboard(browser, host + STEPS, "resume", "from far away")
    finally:
        pause(shop.url, SHOP)
    assert browser.column("reason")[0] == "from far away"
    browser.open(f"{host}/pipelines/{SHOP}/sql?statement=SELECT+41%2B1+AS+sum")
    assert "has not run" in browser.text()
    browser.run("document.querySelector('button.do').click()")
    browser.until(lambda: browser.column("sum") == ["42"], "the statement runs")


def test_a_file_that_cannot_be_had_says_why(browser: Browser, seen: SeenPages) -> None:
    statement = "SELECT+n+FROM+generate_series(1,200000)+AS+n"
    browser.open(f"{seen.at(STEPS)}/sql?statement={statement}")
    browser.run("document.querySelector('a[href*=\"sql.csv\"]').click()")
    browser.until_text("too much for a file from here")


def test_a_retry_by_keyboard_alone(browser: Browser, seen: SeenPages, shop: BrowsedStore) -> None:
    letters = seen.at(f"/pipelines/{SHOP}/letters")
    change_by_keyboard(browser, letters, "retry", "it is mended")
    assert shop.read("SELECT DISTINCT verb FROM request WHERE reason = 'it is mended'") == [
        ("retry",)
    ]


# -- the script ------------------------------------------------------------------------------


def note(shop: BrowsedStore, reason: str) -> None:
    """Something that the log shows."""
    with transaction(shop.url) as connection:
        Asking(connection, SHOP).note(Actor("cat", reason), "note", {})


def test_a_page_follows_the_store(browser: Browser, seen: SeenPages, shop: BrowsedStore) -> None:
    browser.open(seen.at(LOG))
    browser.run("window.isTheSame = true")
    note(shop, "it follows")
    browser.until_text("it follows")
    assert browser.run("return window.isTheSame")


def test_focus_scroll_and_opened_parts_survive_a_change(
    browser: Browser, seen: SeenPages, shop: BrowsedStore
) -> None:
    """Also if what they are in has moved."""
    note(shop, "the former newest")
    browser.open(seen.at(LOG), width=360)
    browser.until_text("the former newest")
    browser.run(
        "const link = document.querySelector('tbody a');"
        "const wide = link.closest('.wide');"
        "link.focus();"
        "wide.scrollLeft = 90;"
        "window.scrollTo(0, 120);"
        "window.was = {link, wide, text: link.textContent};"
    )
    before = browser.run("return window.scrollY")
    assert before == 120
    note(shop, "one more")
    browser.until_text("one more")
    same = browser.run(
        "const rows = [...document.querySelectorAll('tbody tr')];"
        "return [document.activeElement === window.was.link,"
        "rows.indexOf(window.was.link.closest('tr')),"
        "window.was.link.textContent === window.was.text, window.was.wide.scrollLeft]"
    )
    assert same == [True, 1, True, 90]
    assert browser.run("return document.activeElement.getBoundingClientRect().top") >= 0


PARTS = """
const [main, next] = [document.createElement('main'), document.createElement('main')];
main.innerHTML = arguments[0];
next.innerHTML = arguments[1];
document.body.append(main);
for (const each of main.querySelectorAll('*')) each.was = true;
for (const each of main.querySelectorAll('details')) each.open = true;
for (const each of main.querySelectorAll('input')) { each.focus(); each.value = 'typed'; }
const focused = document.activeElement;
changeContent(main, next);
const wanted = document.createElement('main');
wanted.innerHTML = arguments[1];
for (const each of wanted.querySelectorAll('details')) each.open = true;
const found = [main.isEqualNode(wanted), main.innerHTML,
  [...main.querySelectorAll('*')].map((each) => Boolean(each.was)),
  document.activeElement === focused,
  [...main.querySelectorAll('input')].map((each) => each.value)];
main.remove();
return found;
"""


@pytest.mark.parametrize(
    ("before", "after", "kept"),
    [
        ("<p>1</p>", "<p>2</p>", [True]),
        ("<p class='a'>1</p>", "<p title='b'>1<b>2</b></p>", [True, False]),
        (
            "<details id='x'><summary>x</summary><p>1</p></details>",
            "<p>new</p><details id='x'><summary>x</summary><p>2</p></details>",
            [False, True, True, True],
        ),
        ("<p id='a'>1</p> <p id='b'>2</p> <p id='c'>3</p>", "<p id='c'>3</p>", [True]),
        ("<p id='a'>1</p><p id='b'>2</p>", "<p id='b'>2</p><p id='a'>1</p>", [True, True]),
        ("<h1>x</h1><p>old</p><div id='w'>1</div>", "<h1>x</h1><div id='w'>2</div>", [True, True]),
        ("<p id='a'>1</p><p id='a'>2</p>", "<p id='a'>1</p><p id='a'>3</p>", [True, True]),
        ("<input id='f'><p>1</p>", "<b>!</b><input id='f' class='x'><p>2</p>", [False, True, True]),
        ("<svg><path d='M0 0'></path></svg>", "<svg><path d='M1 1'></path></svg>", [True, True]),
        ("text<!-- a -->", "<p>all is new</p>", [False]),
        ("<p id='a'>1</p>", "", []),
    ],
)
def test_a_change_touches_only_what_has_changed(
    before: str, after: str, kept: list[bool], browser: Browser, seen: SeenPages
) -> None:
    browser.open(seen.at("/nowhere"))  # a page that does not look again
    script = seen.get("/static/x/live.js").text.partition("document.addEventListener")[0]
    equal, html, same, focused, values = browser.run(script + PARTS, before, after)
    assert equal, html
    assert same == kept
    assert focused
    assert set(values) <= {"typed"}


def test_a_selection_survives(browser: Browser, seen: SeenPages, shop: BrowsedStore) -> None:
    browser.open(seen.at(LOG))
    selected = browser.run(
        "const cell = document.querySelector('tbody td.text');"
        "document.getSelection().selectAllChildren(cell);"
        "return document.getSelection().toString()"
    )
    assert selected
    note(shop, "while one selects")
    browser.until_text("Nothing changes here while you select text", "#looked")
    assert browser.run("return document.getSelection().toString()") == selected
    browser.run("document.getSelection().removeAllRanges()")
    browser.until_text("while one selects")
    browser.until(lambda: browser.text("#looked") == "", "the note goes")


def test_an_unchanged_page_is_not_sent_again(
    browser: Browser, shop: BrowsedStore, pages_of: Callable[..., SeenPages]
) -> None:
    visitors = Visitors()
    seen = pages_of(shop.url, ViewerAccess(host=visitors.host))
    browser.open(seen.at(LOG))
    browser.until(lambda: visitors.with_tag >= 2, "looks with the tag of the last answer")
    statuses = Counter(browser.fetched_statuses())
    assert statuses[304] >= 1
    assert statuses[200] == 1


def test_a_hidden_page_asks_for_nothing(
    browser: Browser, shop: BrowsedStore, pages_of: Callable[..., SeenPages]
) -> None:
    visitors = Visitors()
    seen = pages_of(shop.url, ViewerAccess(host=visitors.host))
    browser.open(seen.at(LOG))
    browser.until(lambda: visitors.requests >= 3, "looks of the page")
    browser.hide()
    try:
        asked = visitors.requests
        # So long that its own timer runs several times.
        ticks = browser.driver.execute_async_script(
            "const done = arguments[0]; let ticks = 0;"
            "const tick = () => { ticks += 1; ticks < 3 ? setTimeout(tick, 1000) : done(ticks); };"
            "tick();"
        )
        assert ticks == 3
        assert visitors.requests <= asked + 1  # one was on its way when it was hidden
    finally:
        browser.show()
    asked = visitors.requests
    browser.until(lambda: visitors.requests > asked, "it looks again once it is seen")


def end_looks(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname ="
            " current_database() AND application_name = 'millwheel look'"
        )


def test_a_store_that_goes_away_and_comes_back(
    browser: Browser, shop: BrowsedStore, pages_of: Callable[..., SeenPages], tmp_path: Path
) -> None:
    parts = urlsplit(shop.url)
    query = dict(parse_qsl(parts.query))
    name = f".s.PGSQL.{query['port']}"
    socket = tmp_path / name
    socket.symlink_to(Path(query["host"]) / name)
    url = urlunsplit(parts._replace(query=f"host={tmp_path}&port={query['port']}"))
    seen = pages_of(url)
    browser.open(seen.at(LOG))
    asked = browser.column("batch")
    socket.unlink()
    end_looks(shop.url)  # a server that goes away ends its sessions
    browser.until_text("Service Unavailable", "h1")
    assert "tries again" in browser.text()
    assert "The last look has failed. Trying again." in browser.text("#looked")
    browser.driver.refresh()  # a page that was opened meanwhile comes back, too
    assert browser.text("h1") == "Service Unavailable"
    socket.symlink_to(Path(query["host"]) / name)
    browser.until_text(PAGES["log"].question, "h1")
    browser.until(lambda: browser.text("#looked") == "", "the note goes")
    assert browser.column("batch") == asked
    assert PAGES["log"].question in browser.driver.title
    assert browser.text("nav").count(PAGES["log"].title) == 1


def test_a_server_that_goes_away_and_comes_back(
    browser: Browser, shop: BrowsedStore, pages_of: Callable[..., SeenPages]
) -> None:
    seen = pages_of(shop.url)
    browser.open(seen.at(LOG))
    asked = browser.column("batch")
    seen.server.stop()
    browser.until_text("server does not answer", "#looked")
    assert "What you see is of" in browser.text("#looked")
    assert browser.run(
        "const box = document.querySelector('#looked').getBoundingClientRect();"
        "return box.height > 0 && box.bottom <= innerHeight"
    )
    assert browser.column("batch") == asked
    pages_of(shop.url, port=seen.port)
    browser.until(lambda: browser.text("#looked") == "", "the note goes")
    note(shop, "it is back")
    browser.until_text("it is back")


def test_pages_without_the_script(browser: Browser, seen: SeenPages) -> None:
    browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": True})
    try:
        browser.open(seen.at(LOG))
        assert browser.driver.find_elements("css selector", "tbody tr")
    finally:
        browser.driver.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": False})
