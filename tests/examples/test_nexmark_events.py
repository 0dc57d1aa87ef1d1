"""The events of the Nexmark example: exact to the draw, whatever the order and the options."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.nexmark import generator as definitions
from examples.nexmark.__main__ import main
from examples.nexmark.generator import Generator, Kind
from examples.nexmark.java_random import JavaRandom
from examples.nexmark.model import Auction, Bid, Event, Person, to_milliseconds
from examples.nexmark.options import Options
from examples.nexmark.sources import (
    EventLines,
    MadeEvents,
    emitted,
    in_order_of_emission,
    write,
)
from millwheel.errors import UsageError
from millwheel.sources import Row

KINDS: tuple[Kind, ...] = (Person, Auction, Bid)
EVENTS = 12_000
"""The first draws of ids in a row are alike; over about 11,200 ids they take all values."""


@pytest.fixture(scope="module")
def events() -> list[Event]:
    return made(Options(events=EVENTS))


def made(options: Options) -> list[Event]:
    """All events of one generator, by number."""
    generator = Generator(options)
    return [generator.event(number) for number in range(generator.count)]


# ------------------------------------------------------------------------ random numbers


@pytest.mark.parametrize(
    ("seed", "numbers"),
    [  # printed by java.util.Random itself, of Java 17 and of Java 25
        (42, (-1170105035, 63, 43, 12, 0.30871945533265976, 595021505, 714627759, 196118093)),
        (0, (-1155484576, 48, 15, 8, 0.6374174253501083, 1182054491, 641609359, 1678332854)),
        (1, (-1155869325, 88, 26, 9, 0.20771484130971707, 714504434, 1039119989, 1526301748)),
        (123456789, (-1442945365, 0, 29, 4, 0.39050647939140426, 913732807, 462786443, 771983441)),
        (-7, (1155869324, 97, 43, 3, 0.5214896372918163, 677675436, 212737472, 988357177)),
        (1 << 40, (673231968, 40, 60, 10, 0.8756986749426546, 1223997531, 696135311, 680088502)),
    ],
)
def test_numbers_are_those_of_java(seed: int, numbers: tuple[float, ...]) -> None:
    random = JavaRandom(seed)
    found: list[float] = [random.next_int32(), random.next_int(100), random.next_int(64)]
    found += [random.next_int(13), random.next_double(), random.next_int(1_500_000_000)]
    assert random.next_int(1) == 0
    found += [random.next_int(1 << 30), random.next_int((1 << 31) - 1)]
    assert tuple(found) == numbers


def test_numbers_of_seed_42() -> None:
    random = JavaRandom(42)
    assert [random.next_int32() for _ in range(2)] == [-1170105035, 234785527]
    random = JavaRandom(42)
    assert [random.next_int(100) for _ in range(6)] == [30, 63, 48, 84, 70, 25]
    assert JavaRandom(42).next_double() == 0.7275636800328681


# ------------------------------------------------------------------------------ content


class Draws:
    """The definition once more, as it is written: an event's fields by their order of draws."""

    def __init__(self, event_id: int, people: int, auctions: int) -> None:
        self.random = JavaRandom(event_id)
        self.people = people
        """How many there are by now, this event included."""
        self.auctions = auctions

    def __call__(self, bound: int) -> int:
        return self.random.next_int(bound)

    def price(self) -> int:
        exact = 10 ** (6 * self.random.next_double()) * 100
        return int(exact) + (exact % 1 >= 0.5)

    def string(self, longest: int) -> str:
        text = ""
        for _ in range(3 + self(longest - 3)):
            text += " " if self(13) == 0 else "abcdefghijklmnopqrstuvwxyz"[self(26)]
        return text.strip()

    def person(self) -> int:
        active = min(self.people, 1000)
        return self.people - active + self(active + 10)

    def hundreds(self, newest: int) -> int:
        return newest - newest % 100


def restated(event_id: int, people: int, auctions: int, now: int, horizon: int) -> dict[str, Any]:
    """The fields of an event that the definition fixes."""
    draw = Draws(event_id, people, auctions)
    if event_id % 50 == 0:
        name = definitions.FIRST_NAMES[draw(11)] + " " + definitions.LAST_NAMES[draw(9)]
        email = draw.string(7) + "@"
        email += draw.string(5) + ".com"
        card = f"{draw(10000):04} {draw(10000):04} {draw(10000):04} {draw(10000):04}"
        city = definitions.CITIES[draw(10)]
        state = ["AZ", "CA", "ID", "OR", "WA", "WY"][draw(6)]
        return {
            "id": 1000 + people - 1,
            "name": name,
            "email": email,
            "credit_card": card,
            "city": city,
            "state": state,
            "date_time": now,
        }
    if event_id % 50 <= 3:
        seller = draw.hundreds(people - 1) if draw(4) > 0 else draw.person()
        category = 10 + draw(5)
        initial = draw.price()
        expires = now + 1 + draw(max(2 * horizon, 1))
        item, description = draw.string(20), draw.string(100)
        return {
            "id": 1000 + auctions - 1,
            "item_name": item,
            "description": description,
            "initial_bid": initial,
            "reserve": initial + draw.price(),
            "date_time": now,
            "expires": expires,
            "seller": 1000 + seller,
            "category": category,
        }
    newest = auctions - 1
    if draw(2) > 0:
        auction = draw.hundreds(newest)
    else:
        low = max(newest - 100, 0)
        auction = low + draw(newest - low + 1 + 10)
    bidder = draw.hundreds(people - 1) + 1 if draw(4) > 0 else draw.person()
    return {
        "auction": 1000 + auction,
        "bidder": 1000 + bidder,
        "price": draw.price(),
        "date_time": now,
    }


def fixed_fields(event: Event) -> dict[str, Any]:
    """What `restated` says of an event."""
    return {
        name: to_milliseconds(value) if isinstance(value, datetime) else value
        for name, value in msgspec.structs.asdict(event).items()
        if name != "extra"
    }


BASE = 1_436_918_400_000
assert datetime.fromtimestamp(BASE / 1000, UTC).isoformat() == "2015-07-15T00:00:00+00:00"


@pytest.mark.parametrize(
    ("rate", "generators", "delay"), [(10_000, 1, 100), (3, 1, 333_333), (7, 3, 428_571)]
)
def test_every_field_is_drawn_as_defined(rate: int, generators: int, delay: int) -> None:
    options = Options(events=EVENTS, rate=rate, generators=generators)
    people = auctions = event_id = 0
    for index in range(generators):
        generator = Generator(options, index)
        assert generator.first_id == event_id == index * (EVENTS // generators)
        for number in range(generator.count):
            people += event_id % 50 == 0
            auctions += event_id % 50 in (1, 2, 3)
            now = BASE + number * delay // 1000
            horizon = BASE + (number + 1666) * delay // 1000 - now
            found = fixed_fields(generator.event(number))
            assert found == restated(event_id, people, auctions, now, horizon)
            event_id += 1
    assert event_id == EVENTS


def test_kinds_and_ids(events: list[Event]) -> None:
    assert Counter(map(type, events)) == {Person: 240, Auction: 720, Bid: 11_040}
    first = [type(event) for event in events[:50]]
    assert first == [Person, *[Auction] * 3, *[Bid] * 46]
    people = [event for event in events if isinstance(event, Person)]
    auctions = [event for event in events if isinstance(event, Auction)]
    bids = [event for event in events if isinstance(event, Bid)]
    assert [person.id for person in people] == list(range(1000, 1240))
    assert [auction.id for auction in auctions] == list(range(1000, 1720))
    assert {auction.category for auction in auctions} == {10, 11, 12, 13, 14}
    assert {person.state for person in people} == {"AZ", "CA", "ID", "OR", "WA", "WY"}
    assert min(bid.auction for bid in bids) == 1000
    assert min(bid.bidder for bid in bids) == 1000, "the first person's id is added once"
    assert max(bid.auction for bid in bids) <= 1000 + 719 + 10
    assert max(bid.bidder for bid in bids) <= 1000 + 239 + 10
    assert all(100 <= bid.price <= 100_000_000 for bid in bids)
    assert all(100 <= a.initial_bid <= 100_000_000 for a in auctions)
    assert all(100 <= a.reserve - a.initial_bid <= 100_000_000 for a in auctions)


def test_what_is_hot_and_what_is_ahead(events: list[Event]) -> None:
    newest_auction = newest_person = 0
    hot_auctions = hot_bidders = ahead = old = bids = 0
    for event in events:
        match event:
            case Person():
                newest_person = event.id
            case Auction():
                newest_auction = event.id
            case Bid():
                bids += 1
                hot_auctions += event.auction == newest_auction // 100 * 100
                hot_bidders += event.bidder == newest_person // 100 * 100 + 1
                ahead += event.auction > newest_auction
                old += event.auction < newest_auction - 200
                assert newest_auction - 200 < event.auction <= newest_auction + 10
                assert event.bidder <= newest_person + 10
    assert hot_auctions / bids == pytest.approx(0.5, abs=0.05)
    assert hot_bidders / bids == pytest.approx(0.75, abs=0.05)
    assert ahead > 200, "some bid on auctions that are not opened yet"
    assert old == 0


def test_prices_are_as_likely_in_each_order_of_magnitude(events: list[Event]) -> None:
    magnitudes = Counter(len(str(event.price)) - 3 for event in events if isinstance(event, Bid))
    assert sorted(magnitudes) == [0, 1, 2, 3, 4, 5]
    assert all(1600 < count < 2100 for count in magnitudes.values()), magnitudes


def test_times(events: list[Event]) -> None:
    times = [event.date_time for event in events]
    assert times[0] == datetime(2015, 7, 15, tzinfo=UTC)
    assert times == sorted(times)
    assert times[10_000] - times[0] == timedelta(seconds=1)
    for event in events:
        if isinstance(event, Auction):
            length = event.expires - event.date_time
            assert timedelta(milliseconds=1) <= length <= timedelta(milliseconds=2 * 167)


def test_extra_pads_to_the_usual_size(events: list[Event]) -> None:
    for kind, usual, numbers in ((Person, 200, 2), (Auction, 500, 7), (Bid, 100, 4)):
        sizes = [size(event, numbers) for event in events if type(event) is kind]
        assert sum(sizes) / len(sizes) == pytest.approx(usual, rel=0.05)
        assert min(sizes) >= 0.8 * usual - 1
        assert max(sizes) <= 1.2 * usual + 1


def size(event: Event, numbers: int) -> int:
    """An event's bytes, eight for a number."""
    texts = [v for v in msgspec.structs.asdict(event).values() if isinstance(v, str)]
    assert all(text.isascii() for text in texts)
    # the name counts with its space
    return 8 * numbers + sum(map(len, texts))


def test_the_data_never_change(events: list[Event]) -> None:
    """A release that made other events would give other answers under the same options."""
    digest = hashlib.sha256()
    for event in events:
        digest.update(msgspec.json.encode(event) + b"\n")
    assert digest.hexdigest() == "412cc7f617423afedac279fb980ae124935dc497a800a08b68b636e35d0762bb"


@given(
    st.integers(0, 2_000_000),
    st.integers(1, 10_000),
    st.integers(1, 7),
    st.integers(1, 500).filter(lambda group: group % 953),
)
def test_an_event_is_the_same_however_it_is_made(
    event_id: int, rate: int, generators: int, group: int
) -> None:
    alone = Generator(Options(events=2_000_001)).event(event_id)
    options = Options(events=2_000_001, rate=rate, generators=generators, group=group, late=0.5)
    index = min(event_id // (2_000_001 // generators), generators - 1)
    generator = Generator(options, index)
    other = generator.event(event_id - generator.first_id)
    moved = {"date_time": alone.date_time}
    if isinstance(alone, Auction):
        moved["expires"] = alone.expires
    assert msgspec.structs.replace(other, **moved) == alone
    assert generator.event(event_id - generator.first_id) == other


# -------------------------------------------------------------------------------- order


def test_generators_share_the_events() -> None:
    options = Options(events=1003, generators=4)
    shares = [Generator(options, index) for index in range(4)]
    assert [(g.first_id, g.count) for g in shares] == [(0, 250), (250, 250), (500, 250), (750, 253)]
    assert {g.milliseconds(0) for g in shares} == {BASE}, "their times run side by side"
    assert {g.milliseconds(5) - BASE for g in shares} == {2}, "400 us between two events"
    one, four = made(Options(events=1003)), list(in_order_of_emission(options))
    assert Counter(map(without_times, four)) == Counter(map(without_times, one))


def without_times(event: Event) -> tuple[Any, ...]:
    return tuple(v for v in msgspec.structs.astuple(event) if not isinstance(v, datetime))


def test_the_order_of_a_group_is_the_defined_one() -> None:
    options = Options(events=1000, group=100)
    order = [number for block in emitted(Generator(options), options) for number in block]
    assert order == [n // 100 * 100 + n * 953 % 100 for n in range(1000)]
    assert order[:3] == [0, 53, 6]


@settings(max_examples=30, deadline=None)
@given(
    st.integers(0, 700),
    st.integers(1, 3),
    st.integers(1, 300),
    st.sampled_from([0.0, 0.1, 1.0]),
    st.sampled_from([1, 30, 10_000]),
    st.sampled_from(KINDS),
)
async def test_each_event_comes_once_and_watermarks_are_kept(
    events: int, generators: int, group: int, late: float, rate: int, kind: Kind
) -> None:
    options = Options(events=events, generators=generators, group=group, late=late, rate=rate)
    wanted = Counter(
        event for event in in_order_of_emission(Options(events=events, rate=rate))
        if isinstance(event, kind) and generators == 1
    )  # fmt: skip
    found: Counter[Event] = Counter()
    for partition in MadeEvents(kind, options).partitions():
        rows = await (await partition.open(kind, None)).read(10_000)
        assert [row.offset for row in rows] == list(range(len(rows)))
        watermark = None
        for row in rows:
            if row.watermark is not None:
                assert watermark is None or row.watermark >= watermark
                watermark = row.watermark
            else:
                found[row.value] += 1
                assert watermark is not None
                assert to_milliseconds(row.value.date_time) * 1000 >= watermark, "never late"
    if generators == 1:
        assert found == wanted
    assert sum(found.values()) == sum(
        (n % 50 == 0, 1 <= n % 50 <= 3, n % 50 > 3)[KINDS.index(kind)] for n in range(events)
    )


async def test_a_watermark_is_the_time_of_the_oldest_event_to_come() -> None:
    options = Options(events=1000, group=100, rate=10)
    rows = await (await MadeEvents(Bid, options).partitions()[0].open(Bid, None)).read(5000)
    promised = [row.watermark for row in rows if row.watermark is not None]
    assert promised == [(BASE + 10_000 * block) * 1000 for block in range(10)]


async def test_events_are_late_if_nothing_is_allowed() -> None:
    options = Options(events=5000, rate=100, late=0.1, lateness=timedelta(0))
    watermark, late, total = 0, [], 0
    for row in await (await MadeEvents(Bid, options).partitions()[0].open(Bid, None)).read(10_000):
        if row.watermark is not None:
            watermark = row.watermark
        else:
            total += 1
            behind = watermark - to_milliseconds(row.value.date_time) * 1000
            if behind > 0:
                late.append(behind)
    assert total == 4600
    assert 0.05 < len(late) / total < 0.15
    assert 2_000_000 < max(late) <= 3_000_000


@settings(max_examples=40, deadline=None)
@given(st.data())
async def test_reading_goes_on_at_any_row(data: st.DataObject) -> None:
    options = Options(
        events=data.draw(st.integers(0, 600)),
        group=data.draw(st.sampled_from([1, 7, 100])),
        late=data.draw(st.sampled_from([0.0, 0.2])),
        rate=data.draw(st.sampled_from([20, 1000])),
    )
    kind = data.draw(st.sampled_from(KINDS))
    (partition,) = MadeEvents(kind, options).partitions()
    every = await (await partition.open(kind, None)).read(10_000)
    reader = await partition.open(kind, None)
    read = acknowledged = 0
    position: dict[str, Any] | None = reader.position(0)
    rows: Sequence[Row] = []
    for _ in range(data.draw(st.integers(1, 5))):
        rows = await reader.read(data.draw(st.integers(1, 200)))
        read += len(rows)
        acknowledged = data.draw(st.integers(acknowledged, read))
        position = msgspec.json.decode(msgspec.json.encode(reader.position(acknowledged)))
        if data.draw(st.booleans()):
            reader = await partition.open(kind, position)
            read = acknowledged
    assert await (await partition.open(kind, position)).read(10_000) == every[acknowledged:]
    progress = reader.progress()
    assert progress is not None
    assert 0 <= progress <= 1


# -------------------------------------------------------------------------------- files


async def read(path: Path, kind: Kind) -> Sequence[Row]:
    """The rows of a file."""
    reader = await EventLines(path).partitions()[0].open(kind, None)
    rows = await reader.read(100_000)
    reader.close()
    return rows


async def test_files_hold_the_same_events(tmp_path: Path) -> None:
    options = Options(events=1000, generators=2, group=10, rate=3)
    assert write(tmp_path, options) == {Person: 20, Auction: 60, Bid: 920}
    events = list(in_order_of_emission(options))
    for kind, name in ((Person, "person"), (Auction, "auction"), (Bid, "bid")):
        values = [row.value for row in await read(tmp_path / f"{name}.jsonl", kind)]
        assert values == [event for event in events if isinstance(event, kind)]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "auction.jsonl",
        "bid.jsonl",
        "person.jsonl",
    ]
    line = msgspec.json.decode((tmp_path / "auction.jsonl").read_bytes().splitlines()[0])
    assert line["date_time"] == BASE + 3 * 666_666 // 1000, "number 3 comes second in its group"
    assert isinstance(line["expires"], int)


async def test_times_of_others_may_be_text(tmp_path: Path) -> None:
    path = tmp_path / "bid.jsonl"
    path.write_text(
        '{"auction":1,"bidder":2,"price":3,"date_time":"2020-01-01T01:00:00.5+01:00","url":"x"}\n'
        '{"auction":1,"bidder":2,"price":3,"date_time":1577836800500,"extra":"e"}\n'
        '{"auction":1,"bidder":2,"price":3,"date_time":99999999999999999999}\n'
        '{"auction":1,"bidder":2,"date_time":0}\n'
    )
    one, other, too_large, incomplete = await read(path, Bid)
    moment = datetime(2020, 1, 1, 0, 0, 0, 500_000, tzinfo=UTC)
    assert one.value == Bid(1, 2, 3, moment)
    assert other.value == Bid(1, 2, 3, moment, "e")
    assert "line 3" in str(too_large.error)
    assert "price" in str(incomplete.error)


def test_the_command_writes_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NEXMARK_EVENTS", "100")
    assert main(["--write", str(tmp_path / "new")]) == 0
    assert f"{tmp_path}/new/bid.jsonl: 92 lines" in capsys.readouterr().out
    monkeypatch.setenv("NEXMARK_EVENTS", "many")
    assert main(["--write", str(tmp_path / "new")]) == 2
    assert "NEXMARK_EVENTS=many is not a whole number" in capsys.readouterr().err


# ------------------------------------------------------------------------------ options


def test_options_come_from_the_environment() -> None:
    assert Options.from_environment({"HOME": "/", "NEXMARK_RATE": ""}) == Options()
    given_ = {
        "NEXMARK_EVENTS": "1,000",
        "NEXMARK_GENERATORS": "2",
        "NEXMARK_RATE": "5",
        "NEXMARK_BASE_TIME": "2020-01-01T00:00:00Z",
        "NEXMARK_GROUP": "3",
        "NEXMARK_LATE": "0.25",
        "NEXMARK_LATENESS": "1.5",
        "NEXMARK_DIR": "/data",
    }
    assert Options.from_environment(given_) == Options(
        events=1000,
        generators=2,
        rate=5,
        base_time=datetime(2020, 1, 1, tzinfo=UTC),
        group=3,
        late=0.25,
        lateness=timedelta(seconds=1.5),
        directory=Path("/data"),
    )
    moved = Options.from_environment({"NEXMARK_BASE_TIME": str(BASE)})
    assert moved == Options()


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("EVENTS", "-1", "must be 0 or more"),
        ("RATE", "0", "1 to 2,000,000"),
        ("RATE", "fast", "is not a whole number"),
        ("GROUP", "1906", "no multiple of 953"),
        ("LATE", "2", "a probability"),
        ("LATE", "nan", "a probability"),
        ("LATENESS", "-1", "0 seconds or more"),
        ("BASE_TIME", "2020-01-01", "give its time zone"),
        ("BASE_TIME", "9999-12-31T23:59:59Z", "after the year 9999"),
        ("GENERATORS", "1000000", "at most 60 times NEXMARK_RATE"),
        ("EVENT", "5", "there is no option NEXMARK_EVENT; there are NEXMARK_EVENTS, "),
    ],
)
def test_wrong_options_are_refused(name: str, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Generator(Options.from_environment({f"NEXMARK_{name}": text}))
