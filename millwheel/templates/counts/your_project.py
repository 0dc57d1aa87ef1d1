"""Counts searches: in all, by word and minute, and those that came too late for their minute.

millwheel run your_project:pipeline --store store
millwheel sql 'SELECT * FROM minutes ORDER BY minute, word' --store store
"""

from __future__ import annotations

from datetime import datetime, timedelta

from msgspec import Struct

from millwheel import Computation, Context, JsonLines, Pipeline, Record, Stream, Table
from millwheel.computations import FlatMap, Windowed, count
from millwheel.windows import Pane, Tumbling


class Search(Struct):
    """A line of searches.jsonl."""

    at: datetime
    query: str


class Trend(Struct):
    """The state of one query, and a row of the table `trends`."""

    query: str = ""
    searches: int = 0


class Word(Struct):
    """A word of a query; a row of the table `late_words` if it came too late."""

    word: str
    at: datetime


class Minute(Struct):
    """A row of the table `minutes`."""

    word: str
    minute: datetime
    searches: int


SEARCHES = Stream("searches", Search)
TRENDS = Stream("trends", Trend)
WORDS = Stream("words", Word)
COUNTS = Stream("counts", Pane[int])
LATE = Stream("late", Word)


class CountSearches(Computation[Search, Trend]):
    """Counts the searches of each query."""

    writes = (TRENDS,)

    async def process_record(self, record: Record[Search], ctx: Context[Trend]) -> None:
        ctx.state.query = record.value.query
        ctx.state.searches += 1
        ctx.produce(TRENDS, Trend(ctx.state.query, ctx.state.searches))


def words(search: Search) -> list[Word]:
    return [Word(word, search.at) for word in search.query.split()]


def minute(pane: Pane[int]) -> Minute:
    return Minute(str(pane.key), pane.start, pane.value)


pipeline = Pipeline("your_project")
pipeline.inject(
    SEARCHES,
    JsonLines("searches.jsonl"),
    timestamp=lambda search: search.at,
    lateness=timedelta(seconds=10),  # a line may be this much older than the newest before it
)
pipeline.add(CountSearches(), SEARCHES.by(lambda search: search.query))
pipeline.add(FlatMap(words, to=WORDS), SEARCHES.by(lambda search: search.query))
pipeline.add(
    Windowed(Tumbling(minutes=1), count, to=COUNTS, late=LATE),
    WORDS.by(lambda word: word.word),
)
pipeline.sink(TRENDS, Table("trends", Trend, key=("query",)))
pipeline.sink(COUNTS, Table("minutes", Minute, key=("word", "minute")), row=minute)
pipeline.sink(LATE, Table("late_words", Word))
