"""The flights example's input: all departures, in the order in which they were seen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise
from pathlib import Path

import msgspec
import pytest

from examples.flights import replay
from examples.flights.replay import Flight, prepare, repeat, weather_csv
from millwheel.errors import UsageError
from tests.support import flights_oracle

FLIGHTS = 336_776


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("input")


@pytest.fixture(scope="module")
def flights(directory: Path) -> list[Flight]:
    """The whole year, which takes 2 s to decode."""
    return list(read(prepare(directory)))


class Place(msgspec.Struct):
    """Where a flight stands: it is decoded in a tenth of the time."""

    row: int
    seen_at: str


def read(path: Path) -> Iterator[Flight]:
    decode = msgspec.json.Decoder(Flight).decode
    with path.open("rb") as lines:
        for line in lines:
            yield decode(line)


def test_each_departure_is_there_once_in_the_order_seen(directory: Path) -> None:
    decode = msgspec.json.Decoder(Place).decode
    places = [decode(line) for line in prepare(directory).read_bytes().splitlines()]
    assert len(places) == FLIGHTS
    assert {place.row for place in places} == set(range(FLIGHTS))
    assert len({len(place.seen_at) for place in places}) == 1, "so texts are in the order of times"
    assert all(
        (one.seen_at, one.row) < (other.seen_at, other.row) for one, other in pairwise(places)
    )


def check_times(flights: list[Flight]) -> None:
    for flight in flights:
        assert flight.cancelled == (flight.dep_delay is None)
        assert flight.seen_at - flight.scheduled_at == timedelta(minutes=flight.dep_delay or 0)


def test_flights_are_seen_when_they_leave_and_cancelled_ones_when_planned(directory: Path) -> None:
    flights = list(islice(read(prepare(directory)), 5_000))
    check_times(flights)
    assert sum(flight.cancelled for flight in flights) > 10
    assert max(flight.dep_delay or 0 for flight in flights) > 300


@pytest.mark.soak
def test_the_times_of_the_year(flights: list[Flight]) -> None:
    check_times(flights)
    delays = [flight.dep_delay for flight in flights if flight.dep_delay is not None]
    assert (min(delays), max(delays), FLIGHTS - len(delays)) == (-43, 1301, 8_255)
    assert sum(flight.tailnum is None for flight in flights) == 2_512
    first = next(flight for flight in flights if flight.row == 0)
    assert first == Flight(
        row=0,
        seen_at=datetime(2013, 1, 1, 10, 17, tzinfo=UTC),
        scheduled_at=datetime(2013, 1, 1, 10, 15, tzinfo=UTC),
        origin="EWR",
        dest="IAH",
        carrier="UA",
        flight=1545,
        tailnum="N14228",
        dep_delay=2,
    )


@pytest.mark.soak
def test_the_replay_and_the_oracle_tell_the_same_story(flights: list[Flight]) -> None:
    counts: Counter[tuple[str, datetime]] = Counter()
    minutes: Counter[tuple[str, datetime]] = Counter()
    for flight in flights:
        key = flight.origin, flight.scheduled_at.replace(minute=0)
        counts[key] += 1
        minutes[key] += flight.dep_delay or 0
    oracle = flights_oracle.airport_hour()
    assert len(oracle) == 19_486
    assert {key: counted[0] for key, counted in oracle.items()} == counts
    assert {key: counted[2] for key, counted in oracle.items()} == minutes
    totals = [sum(column) for column in zip(*oracle.values(), strict=True)]
    assert totals[:2] == [FLIGHTS, 8_255]
    assert totals[3] == sum((flight.dep_delay or 0) >= 15 for flight in flights)


def test_the_file_is_written_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = prepare(directory)
    before = path.stat()

    def unexpected() -> Iterator[bytes]:
        pytest.fail("it is made again")

    monkeypatch.setattr(replay, "_sorted_lines", unexpected)
    assert prepare(directory) == path
    assert path.stat() == before


def test_another_format_is_another_file(
    tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = prepare(directory).name
    monkeypatch.setattr(replay, "FORMAT", replay.FORMAT + 1)
    monkeypatch.setattr(replay, "_sorted_lines", lambda: iter([b"{}"]))
    monkeypatch.chdir(tmp_path)
    assert prepare().name != name
    assert prepare().read_bytes() == b"{}\n"
    assert prepare().parent == Path(".cache/flights")


def test_a_file_broken_off_is_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def breaks_off() -> Iterator[bytes]:
        yield b"{}"
        raise KeyboardInterrupt

    monkeypatch.setattr(replay, "_sorted_lines", breaks_off)
    with pytest.raises(KeyboardInterrupt):
        prepare(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.soak
def test_a_repeated_year_stays_in_order_across_the_seam(
    directory: Path, flights: list[Flight]
) -> None:
    seen, rows, weekdays = flights[0].seen_at, 0, Counter[tuple[int, int]]()
    for flight in read(repeat(2, directory)):
        copy = flight.row // FLIGHTS
        assert flight.seen_at >= seen
        seen = flight.seen_at
        if copy == 1:
            assert flight.scheduled_at > flights[-1].seen_at, "the year before is over"
        weekdays[copy, flight.scheduled_at.weekday()] += 1
        rows += 1
    assert rows == 2 * FLIGHTS
    assert all(weekdays[0, day] == weekdays[1, day] for day in range(7))
    with pytest.raises(UsageError, match="0 times"):
        repeat(0, directory)


def test_without_the_package_it_is_said_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert weather_csv().name == "weather.csv"
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"pip install 'millwheel-engine\[examples\]'"):
        prepare(tmp_path)
