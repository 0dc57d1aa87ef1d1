"""The payments in millwheel from topic to topic, with one worker.

A record's state is committed in Postgres; its balance then goes to the topic in a Kafka
transaction. It is done when a consumer of committed records can see it.

`batch`: transactions of as many records as have come, up to those of a bundle.
`latency`: the same; a transaction does not wait for further records.
"""

import asyncio
from datetime import timedelta

import marks

from bench import quiet
from bench.server import fresh_store
from bench.workload import BALANCES, PAYMENTS, KeepBalance
from millwheel import Pipeline
from millwheel.kafka import Kafka, KafkaCluster, KafkaSink
from millwheel.runtime.engine import Engine
from millwheel.runtime.environment import Options
from millwheel.services import loop


def pipeline(options):
    """Build the workload between the topics."""
    made = Pipeline("bench_peers")
    cluster = KafkaCluster(options.kafka)
    made.inject(
        PAYMENTS,
        Kafka(cluster, options.payments),
        timestamp=lambda payment: payment.at,
        lateness=timedelta(seconds=10),
    )
    made.add(KeepBalance(), PAYMENTS.by(lambda payment: payment.account), name="keep_balance")
    made.sink(BALANCES, KafkaSink(cluster, options.balances, key=lambda balance: balance.account))
    return made


async def run(options):
    """Run until the end of the process."""
    store = await fresh_store(options.url, "bench_peers")
    engine = Engine(pipeline(options), store, options=Options(keep_open=True))
    await engine.start()
    await engine.run()
    await asyncio.Event().wait()


if __name__ == "__main__":
    quiet()
    loop.run(run(marks.options()))
