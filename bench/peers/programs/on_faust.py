"""The payments in Faust (faust-streaming): an agent with a table, from topic to topic.

Faust documentation, "Tables and Windowing" and "Configuration Reference" (`processing_guarantee`,
`broker_commit_every`): a table's changes go to a changelog topic, and offsets are committed every N
records or seconds. `processing_guarantee="exactly_once"` writes offsets, changelog and outputs in
one Kafka transaction. A record is done when a consumer of committed records can see its balance.

`batch`: exactly once, a commit for as many records as in millwheel's bundles.
`default`: at least once, tables in memory.
`latency`: exactly once, a commit for each record.
"""

import faust
import marks


def main():
    options = marks.options()
    commits = {"batch": options.batch, "latency": 1}
    exact = {
        "processing_guarantee": "exactly_once",
        "broker_commit_every": commits.get(options.setting),
    }
    app = faust.App(
        options.payments,
        broker=f"kafka://{options.kafka}",
        datadir=str(options.out / "data"),
        store="memory://",
        topic_partitions=1,
        web_enabled=False,
        consumer_auto_offset_reset="earliest",
        **(exact if options.setting in commits else {}),
    )
    payments = app.topic(options.payments, key_serializer="raw", value_serializer="json")
    balances = app.topic(options.balances, key_serializer="raw", value_serializer="json")
    accounts = app.Table("accounts", default=lambda: [0, 0], partitions=1)

    @app.agent(payments)
    async def keep_balance(stream):
        async for key, payment in stream.items():
            count, total = accounts[payment["account"]]
            count, total = count + 1, total + payment["amount"]
            accounts[payment["account"]] = [count, total]
            balance = {"account": payment["account"], "payments": count, "total": total}
            await balances.send(key=key, value=balance)

    faust.Worker(app, loglevel="ERROR").execute_from_commandline()


if __name__ == "__main__":
    main()
