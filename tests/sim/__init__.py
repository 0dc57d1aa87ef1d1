"""A whole cluster in one process, on virtual time, from one seed: the contract of the engine,
proven.

The rooms, from the ground up: `server` is the database, `wire` what workers call it by, `network`
what they reach each other by; `scenario` says what is to happen, as plain data, and `drawing` draws
one from a seed; `pipelines` makes the graph of it; `ledger` is what a bystander knows, `checks`
what must hold of it, `monitor` asks them at every step; `cluster` runs a scenario, `oracle` says
what must have come of it; `shrink` makes a failing one smaller; `command` is ``python -m
tests.sim``.
"""
