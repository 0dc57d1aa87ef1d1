"""The combinations of options of a computation that are refused, with the reason of each.

They are one table. `check_options` raises from it, and the page ``docs/reference/options.md`` shows
it (a test compares them).
"""

from __future__ import annotations

from typing import NamedTuple

from millwheel.errors import GraphError
from millwheel.graph.node import Node
from millwheel.streams import Broadcast, Input

STRONG = 'productions="strong"'
WEAK = 'productions="weak"'
TREE = 'acknowledgement="tree"'
AT_LEAST_ONCE = "exactly_once=False"
AT_MOST_ONCE = 'delivery="at_most_once"'
PARK = 'on_error="park"'
BUNDLES = "bundles"
BROADCAST = "a broadcast input"
SPREAD = "a spread input"
KEYED = "an input by a key"
STATE = "state"
TIMERS = "timers"
ORDERED_STATE = "state that depends on order"
ORDERED_TABLE = "a shared table that depends on order"


class Conflict(NamedTuple):
    """Two options that do not go together."""

    option: str
    other: str
    why: str
    """The error, after the computation's name."""


_PARK = (
    "{other} does not go with {option}: a record that waits is stored and run in a commit of its "
    'key. Use on_error="dead_letter"'
)
_WEAK = (
    "{other_words}, so its productions cannot be weak: a record that is processed again after a "
    "crash, perhaps in another order, may see different state and produce different values, which "
    'would be dropped or counted twice. Add it with productions="strong", or, if its output for a '
    "record does not depend on earlier records, declare that in the class: order_insensitive = True"
)
_TREE = (
    '{other_words}, so its records have to be stored: acknowledgement="tree" is for computations '
    'that only pass things on. Add it with acknowledgement="chain"'
)
_BUNDLES = (
    "reads in numbered bundles, with records of many keys, but {other_words}; {remedy} in a "
    "computation before this one"
)
_SPREAD = (
    "reads {spread} spread: the engine chooses its keys, which mean nothing, but {other_words}; "
    "read the stream by a key: STREAM.by(...)"
)

CONFLICTS = (
    Conflict(
        AT_MOST_ONCE,
        BROADCAST,
        "reads a stream by broadcast, and at most once: a record lost on its way to one range of "
        "keys but not to another would leave them with different tables for good. Remove "
        'delivery="at_most_once"',
    ),
    Conflict(BUNDLES, STATE, _BUNDLES.replace("{remedy}", "keep it")),
    Conflict(BUNDLES, TIMERS, _BUNDLES.replace("{remedy}", "set them")),
    Conflict(BUNDLES, BROADCAST, _BUNDLES.replace("{remedy}", "look values up")),
    Conflict(
        BUNDLES,
        AT_LEAST_ONCE,
        "reads in numbered bundles, with each record in exactly one of them: that takes "
        "exactly_once=True",
    ),
    Conflict(
        BUNDLES,
        AT_MOST_ONCE,
        "reads in numbered bundles, and their records are sent until they are acknowledged: remove "
        'delivery="at_most_once"',
    ),
    Conflict(
        BUNDLES,
        WEAK,
        "reads in numbered bundles: its productions belong to the commit that marks the bundle as "
        "delivered, so they must be 'strong'",
    ),
    Conflict(WEAK, ORDERED_STATE, _WEAK),
    Conflict(WEAK, ORDERED_TABLE, _WEAK),
    Conflict(
        TREE,
        STRONG,
        'is added with acknowledgement="tree" and productions="strong": strong productions are '
        "stored, so no tree is needed to reproduce them; add it with "
        'productions="weak", or leave acknowledgement out',
    ),
    Conflict(
        TREE,
        AT_MOST_ONCE,
        'is added with acknowledgement="tree", which processes a record again when any of its '
        'output is lost, and with delivery="at_most_once"; leave one of them out',
    ),
    Conflict(TREE, STATE, _TREE),
    Conflict(TREE, TIMERS, _TREE),
    Conflict(TREE, BROADCAST, _TREE),
    Conflict(WEAK, PARK, _PARK),
    Conflict(AT_LEAST_ONCE, PARK, _PARK),
    Conflict(AT_MOST_ONCE, PARK, _PARK),
    Conflict(BUNDLES, PARK, _PARK),
    Conflict(BROADCAST, PARK, _PARK),
    Conflict(
        SPREAD,
        KEYED,
        "reads {spread} spread: the engine chooses its keys, which mean nothing, and {keyed}; read "
        "both by a key if the key matters, both spread if it does not",
    ),
    Conflict(SPREAD, STATE, _SPREAD),
    Conflict(SPREAD, TIMERS, _SPREAD),
)
"""In the order in which they are checked."""

WORDS = {
    STATE: "keeps state by key",
    TIMERS: "has timers by key",
    BROADCAST: "has a table built from a broadcast input",
    ORDERED_STATE: "keeps state",
    ORDERED_TABLE: "reads a table that broadcast records build",
}
"""Options of a class, as the end of a sentence about it."""


def options_of(node: Node) -> set[str]:
    """The options of a computation that the table knows."""
    computation = node.computation
    assert computation is not None
    keeps_state = computation.state_type not in (None, type(None))
    shares = computation.shared_type not in (None, type(None))
    keyed = [reading for reading in node.inputs if isinstance(reading, Input)]
    is_ordered = not computation.order_insensitive
    given = {
        STRONG: not node.is_weak,
        WEAK: node.is_weak,
        TREE: node.is_tree,
        AT_MOST_ONCE: node.at_most_once,
        AT_LEAST_ONCE: not (node.exactly_once or node.at_most_once),
        PARK: node.park is not None,
        BUNDLES: node.bundles is not None,
        BROADCAST: any(isinstance(reading, Broadcast) for reading in node.inputs)
        or computation.defines("process_broadcast"),
        SPREAD: any(reading.extractor is None for reading in keyed),
        KEYED: any(reading.extractor is not None for reading in keyed),
        STATE: keeps_state,
        TIMERS: computation.defines("process_timer"),
        ORDERED_STATE: is_ordered and keeps_state,
        ORDERED_TABLE: is_ordered and shares,
    }
    return {option for option, is_given in given.items() if is_given}


def check_options(node: Node) -> None:
    """Refuse a combination of options of a computation.

    Raises:
        GraphError: two of them do not go together.
    """
    given = options_of(node)
    for conflict in CONFLICTS:
        if conflict.option in given and conflict.other in given:
            raise GraphError(f"{node.name!r} {_filled(conflict, node)}")


def _filled(conflict: Conflict, node: Node) -> str:
    """The words of an error, with the names of the node's streams."""
    keyed = [reading for reading in node.inputs if isinstance(reading, Input)]
    return conflict.why.format(
        option=conflict.option,
        other=conflict.other,
        other_words=WORDS.get(conflict.other, conflict.other),
        spread=", ".join(repr(i.stream.name) for i in keyed if i.extractor is None),
        keyed=", ".join(f"{i.stream.name!r} by {i.extractor_name}" for i in keyed if i.extractor),
    )
