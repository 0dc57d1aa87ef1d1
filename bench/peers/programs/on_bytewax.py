"""The payments in Bytewax: a stateful map over a file, its balances to a file.

Bytewax documentation, "Recovery": state is written to the recovery store (SQLite) at the end of
each epoch, and records after the last complete epoch are processed again. A record is therefore
done when its epoch is in the store, and an epoch per batch is comparable with a commit per bundle:
`--snapshot-interval 0` ends an epoch after each batch of the source. Both the store (SQLite in WAL
mode, with the default `synchronous`: full) and `FileSink` (fsync after each batch) reach the disk.

`batch`: an epoch for each batch, with as many records as millwheel's bundles.
`default`: batches of 1,000 and epochs of 10 s, the defaults.
`memory`: no recovery, as in the first examples of the documentation.
"""

import json
from datetime import timedelta

import marks
from bytewax import operators as op
from bytewax.connectors.files import FileSink, FileSource
from bytewax.dataflow import Dataflow
from bytewax.recovery import RecoveryConfig, init_db_dir
from bytewax.run import cli_main


def keep_balance(account, payment):
    """Return the new state, and the balance to output."""
    payments, total = account or (0, 0)
    account = (payments + 1, total + payment["amount"])
    return account, {"account": payment["account"], "payments": account[0], "total": account[1]}


def dataflow(options):
    """Build the dataflow from lines to lines."""
    done = 0

    def encode(balance):
        nonlocal done
        done += 1
        if done == options.warm:
            marks.begin(done)
        return str(balance["account"]), json.dumps(balance)

    size = {"batch_size": options.batch} if options.setting == "batch" else {}
    flow = Dataflow("payments")
    lines = op.input("lines", flow, FileSource(options.input, **size))
    payments = op.map("decode", lines, json.loads)
    keyed = op.key_on("account", payments, lambda payment: str(payment["account"]))
    balances = op.stateful_map("balance", keyed, keep_balance)
    out = op.map("encode", op.key_rm("unkey", balances), encode)
    op.output("out", out, FileSink(options.out / "balances.jsonl"))
    return flow


def main():
    options = marks.options()
    recovery = None
    if options.setting != "memory":
        directory = options.out / "recovery"
        directory.mkdir()
        init_db_dir(directory, 1)
        recovery = RecoveryConfig(directory, timedelta(0))
    epoch = timedelta(0) if options.setting == "batch" else timedelta(seconds=10)
    cli_main(dataflow(options), epoch_interval=epoch, recovery_config=recovery)
    marks.end()


if __name__ == "__main__":
    main()
