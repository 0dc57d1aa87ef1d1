"""Real workers on a real Postgres, harmed for hours while somebody reads: ``make campaign``.

The rooms, from the ground up: `workload` is what the workers do, and what must come of it;
`control` and `worker` are a worker process that can be told to die at a named point or to live by
another clock; `wire` is a proxy to Postgres that knows what a commit is; `sites` are the servers;
`crew` the worker processes of one run. `checks` says what may never be seen, `reader` looks for it
while things go wrong, `pulse` notes how long intervals stand still. `faults` is what can happen,
one name each. `ledger` and `nexmark` carry out one run; `plan` says which there are, `report` what
came of them, and `command` is ``python -m tests.campaign``.
"""
