"""The payments in millwheel, with one worker; a record's effects and output are in one transaction.

`file`: the balances go to JSON Lines, as in the peers that write files. `discard`: they are stored
as productions, sent to a sink, and dropped; the final state is checked. `latency`: as `file`, but
records arrive at a fixed rate; a record is done when its balance is in the file and the commit with
it is durable.
"""

import asyncio
from datetime import timedelta

import marks
import psycopg

from bench import quiet
from bench.server import fresh_store
from bench.workload import BALANCES, PAYMENTS, KeepBalance
from millwheel import Discard, JsonLines, JsonLinesFiles, Pipeline
from millwheel.runtime.engine import Engine
from millwheel.services import loop
from millwheel.store.postgres.store import PostgresStore

STATES = "SELECT key::bigint, value FROM bench_peers.states WHERE computation = 'keep_balance'"


def pipeline(options, path, *, follow=False):
    """Build the workload, with the output of the setting."""
    made = Pipeline("bench_peers")
    made.inject(
        PAYMENTS,
        JsonLines(path, follow=follow),
        timestamp=lambda payment: payment.at,
        lateness=timedelta(seconds=10),
    )
    made.add(KeepBalance(), PAYMENTS.by(lambda payment: payment.account), name="keep_balance")
    discard = options.setting == "discard"
    made.sink(BALANCES, Discard() if discard else JsonLinesFiles(options.out / "balances"))
    return made


def has_file(node):
    """Whether this step writes the balances."""
    return any(isinstance(use.sink, JsonLinesFiles) for uses in node.sinks.values() for use in uses)


async def run(options):
    """Run to the end of the input."""
    store = await fresh_store(options.url, "bench_peers")
    engine = Engine(pipeline(options, options.input), store)
    await engine.start()
    running = asyncio.create_task(engine.run())
    (injector,) = engine.injectors
    while injector.log.first < options.warm and not running.done():
        await asyncio.sleep(0.01)
    marks.begin(injector.log.first)
    await running
    await asyncio.to_thread(marks.end)
    await engine.stop()
    await store.close()
    if options.setting == "discard":
        with psycopg.connect(options.url) as connection:
            states = [dict(value, account=key) for key, value in connection.execute(STATES)]
        marks.write_answers(options.out / "finals.jsonl", states)


class CountingLane:
    """A lane that reports its durable commits to the store."""

    def __init__(self, lane, store):
        self._lane = lane
        self._store = store
        self.close = lane.close
        self.prepare = lane.prepare

    async def commit(self, commit):
        await self._lane.commit(commit)
        self._store.note(commit)


class CountingStore(PostgresStore):
    """A store that counts the balances durable in the files."""

    sink = 0
    lines = 0
    arrivals = None

    async def open_lane(self):
        return CountingLane(await super().open_lane(), self)

    def note(self, commit):
        """Count the balances of a durable commit."""
        for seen in commit.seen.values():
            _, computations, _ = seen.columns
            self.lines += computations.count(self.sink)
        if self.arrivals is not None:
            self.arrivals.done(self.lines - self.arrivals.before)


async def by_the_clock(options):
    """Run a warm-up, then records at a fixed rate."""
    await (await fresh_store(options.url, "bench_peers")).close()
    store = await CountingStore(options.url, "bench_peers").open()
    lines = options.input.read_bytes().splitlines(keepends=True)[: options.records]
    growing = options.out / "payments.jsonl"
    growing.write_bytes(b"".join(lines[: options.warm]))
    engine = Engine(pipeline(options, growing, follow=True), store)
    await engine.start()
    store.sink = next(id_ for id_, step in engine.steps.items() if has_file(step.node))
    await engine.run()
    marks.begin(options.warm)

    def place(group):
        with growing.open("ab") as file:
            file.writelines(lines[options.warm + group[0] : options.warm + group[-1] + 1])

    arrivals = marks.Arrivals(options.rate, options.records - options.warm, place)
    arrivals.before = store.lines
    store.arrivals = arrivals
    arrivals.start()
    while store.lines < options.records:
        await asyncio.sleep(0.01)
    arrivals.write(options.out)
    await asyncio.to_thread(marks.end)
    await engine.stop()
    await store.close()


if __name__ == "__main__":
    quiet()
    given = marks.options()
    loop.run(by_the_clock(given) if given.setting == "latency" else run(given))
