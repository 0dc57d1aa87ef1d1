"""The payments in Faust (faust-streaming): an agent with a table, from topic to topic.

Faust documentation, "Tables and Windowing" and "Configuration Reference" (`processing_guarantee`,
`broker_commit_every`): a table's changes go to a changelog topic, and offsets are committed every N
records or seconds. `processing_guarantee="exactly_once"` writes offsets, changelog and outputs in one
Kafka transaction. A record is done when a consumer of committed records can see its balance.

`batch`: exactly once, a commit for as many records as in millwheel's bundles.
`default`: at least once, tables in memory.
"""

import os

import faust
import kafka_topics
import marks


def main():
    options = marks.options()
    topics = kafka_topics.Topics(options)
    exact = {"processing_guarantee": "exactly_once", "broker_commit_every": options.batch}
    app = faust.App(
        topics.name,
        broker=f"kafka://{options.kafka}",
        datadir=str(options.out / "data"),
        store="memory://",
        topic_partitions=1,
        web_enabled=False,
        consumer_auto_offset_reset="earliest",
        **(exact if options.setting == "batch" else {}),
    )
    payments = app.topic(topics.payments, key_serializer="raw", value_serializer="json")
    balances = app.topic(topics.balances, key_serializer="raw", value_serializer="json")
    accounts = app.Table("accounts", default=lambda: [0, 0], partitions=1)

    @app.agent(payments)
    async def keep_balance(stream):
        async for key, payment in stream.items():
            count, total = accounts[payment["account"]]
            count, total = count + 1, total + payment["amount"]
            accounts[payment["account"]] = [count, total]
            balance = {"account": payment["account"], "payments": count, "total": total}
            await balances.send(key=key, value=balance)

    def leave():
        topics.finish()
        os._exit(0)  # a worker offers no other way to end it from a thread

    topics.watch(on_end=leave)
    faust.Worker(app, loglevel="ERROR").execute_from_commandline()


if __name__ == "__main__":
    main()
