"""The Nexmark queries as SQL: the files ``sql/q0.sql`` to ``sql/q22.sql``, except Q13.

``millwheel run examples.nexmark.as_sql:q5`` runs one in a pipeline ``nexmark_q5_as_sql``, and
writes its answer to the table ``q5``. Events come as described in `examples.nexmark`. ``q4``,
``q6`` and ``q12`` are refused, with the reason; the classes of the same names answer them.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from examples.nexmark.options import Options
from examples.nexmark.sources import AUCTIONS, BIDS, PEOPLE, inject
from millwheel import Pipeline

DIRECTORY = Path(__file__).with_name("sql")
FILES = {path.stem: path for path in DIRECTORY.glob("q*.sql")}


def text_of(query: str) -> str:
    """The statements of a query, behind those of the stream that it shares with others."""
    text = FILES[query].read_text(encoding="utf-8")
    if "tagged_bids" not in text:
        return text
    return (DIRECTORY / "tagged_bids.sql").read_text(encoding="utf-8") + text


def build(query: str, options: Options) -> Pipeline:
    """The pipeline of a query.

    Raises:
        SqlError: the query is refused.
    """
    text = text_of(query)
    words = set(re.findall(r"\w+", re.sub(r"--.*", "", text)))
    pipeline = Pipeline(f"nexmark_{query}_as_sql")
    read = [stream for stream in (PEOPLE, AUCTIONS, BIDS) if stream.name in words]
    inject(pipeline, options, *read)
    pipeline.sql(text)
    return pipeline


def _from_environment(query: str) -> Pipeline:
    return build(query, Options.from_environment())


def __getattr__(name: str) -> Callable[[], Pipeline]:
    """The pipelines ``q0``, ``q1`` and so on, with options from the environment."""
    if name not in FILES:
        raise AttributeError(f"there is no query {name}")
    return partial(_from_environment, name)
