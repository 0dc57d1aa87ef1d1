"""Counts words: lines of a file are split into words, and each word has a row of a table.

    echo '{"at": "2024-01-01T00:00:00Z", "text": "the cat and the owl"}' > lines.jsonl
    millwheel run examples.word_count:pipeline --store .millwheel
    millwheel sql 'SELECT * FROM words ORDER BY word' --store .millwheel --pipeline word_count

Kill the run at any moment and start it again: each word counts once.
"""

from __future__ import annotations

from datetime import datetime

from msgspec import Struct

from millwheel import Computation, Context, JsonLines, Pipeline, Record, Stream, Table
from millwheel.computations import FlatMap


class Line(Struct):
    at: datetime
    text: str


class Count(Struct):
    """The state of one word, and its row."""

    word: str = ""
    times: int = 0


LINES = Stream("lines", Line)
WORDS = Stream("words", str)
COUNTS = Stream("counts", Count)


class CountWords(Computation[str, Count]):
    """Counts how often each word is seen."""

    writes = (COUNTS,)

    async def process_record(self, record: Record[str], ctx: Context[Count]) -> None:
        count = ctx.state
        count.word = record.value
        count.times += 1
        ctx.produce(COUNTS, Count(count.word, count.times))


pipeline = Pipeline("word_count")
pipeline.inject(LINES, JsonLines("lines.jsonl"), timestamp=lambda line: line.at)
pipeline.add(FlatMap(lambda line: line.text.lower().split(), to=WORDS), LINES.spread())
pipeline.add(CountWords(), WORDS.by(str))
pipeline.sink(COUNTS, Table("words", Count, key=("word",)))
