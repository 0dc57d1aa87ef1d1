"""Every change that a deploy can find, with its result: the one table behind the check of a
deploy, ``millwheel plan`` and the page docs/reference/changes.md (decision 66).

A text has gaps, such as ``{name}``, that a `CodeChange` fills.
"""

from __future__ import annotations

from collections.abc import Mapping

from millwheel.store.port.change import ChangeVerdict, Kind

TAKEN, FOLLOWS = ChangeVerdict.TAKEN, ChangeVerdict.FOLLOWS
NEEDS, IMPOSSIBLE = ChangeVerdict.NEEDS, ChangeVerdict.IMPOSSIBLE

# -- steps of the graph ------------------------------------------------------------------------

NODE_ADDED = Kind(
    "an additional computation, source or sink",
    FOLLOWS,
    "it begins with the records that are sent from now on",
)
NODE_MISSING = Kind(
    "a computation, source or sink that is only in the store",
    NEEDS,
    "if it is to go, remove it first, with its state: millwheel remove {pipeline} {name}; if it "
    "is in the code under a new name, as after a change of its class, say so: "
    'renamed_from="{name}", or keep the former name: name="{name}"',
)
NODE_BACK = Kind(
    "the name of a removed step",
    IMPOSSIBLE,
    "it was removed from pipeline {pipeline!r} with all state; a step that begins with nothing "
    "needs another name",
)
STEP_MISSING = Kind(
    "a step of a sink, of ids or of a broadcast that is only in the store",
    NEEDS,
    "it is called after its stream, and that of a sink after its table too. Keep what it belongs "
    "to in the code; or, if it is to go, remove it first: millwheel remove {pipeline} {name}; "
    "tables and files of a sink stay",
)
STEP_BACK = Kind(
    "a removed step of a sink, of ids or of a broadcast",
    IMPOSSIBLE,
    "it was removed from pipeline {pipeline!r}, and its name does not come back: give the sink a "
    "table of another name, or read another stream",
)
NODE_KIND = Kind(
    "a step of another kind under the name",
    IMPOSSIBLE,
    "nothing that is stored for the one fits the other; give the new one another name",
)
NODE_RENAMED = Kind(
    "another name, by `renamed_from`",
    FOLLOWS,
    "state, timers, records on their way and positions continue under the new name, which views "
    "and commands show from then on",
)
CLASS = Kind("another class under the name", TAKEN)
EXTRACTOR = Kind("a key extractor of another name", TAKEN)

# -- wiring ------------------------------------------------------------------------------------

INPUT_ADDED = Kind(
    "an additional input",
    FOLLOWS,
    "it begins with the records that are sent from now on; new code takes over its key intervals "
    "at once",
)
INPUT_MISSING = Kind(
    "an input less",
    FOLLOWS,
    "its records that are on their way are acknowledged without being processed; new code takes "
    "over the key intervals of its senders at once",
)
INPUT_MISSING_HELD = Kind(
    "an input less, before parked keys or an open bundle",
    NEEDS,
    "{name!r} has parked keys, or a numbered bundle that is not delivered, which may have its "
    "records. Retry or discard the parked ones: millwheel dead-letters list --computation {name} "
    "--waiting; or pause the injectors until the bundle is delivered",
)
INPUT_MANNER = Kind(
    "an input that is read in another manner (by key, spread, broadcast)",
    IMPOSSIBLE,
    "stored records are addressed for the former one; add the computation under another name",
)
WRITES_ADDED = Kind(
    "an additional stream in `writes`",
    FOLLOWS,
    "new code takes over the key intervals of its readers at once",
)
WRITES_MISSING = Kind(
    "a stream less in `writes`",
    FOLLOWS,
    "all that was sent by it is acknowledged; the watermark of its readers no longer waits for "
    "this computation",
)
WRITES_MISSING_SENT = Kind(
    "a stream less in `writes`, with records on their way",
    NEEDS,
    "they would be late, as their readers would no longer wait for them. Pause the injectors "
    "(millwheel pause {pipeline}) until millwheel status shows nothing on its way, deploy, and "
    "resume; or keep it in `writes`, and produce nothing to it",
)
WRITES_MISSING_WEAK = Kind(
    "a stream less in `writes` of a weak computation",
    IMPOSSIBLE,
    "its records on their way are not stored, so nobody knows whether there are any; keep it in "
    "`writes`, and produce nothing to it",
)
GUARANTEE = Kind(
    "another way to process (`productions`, `delivery`, ids, bundles, broadcast cells)",
    IMPOSSIBLE,
    "records stored in the former way are not understood in the new one; add the computation "
    "under another name, and remove this one",
)

# -- sources and sinks -------------------------------------------------------------------------

SOURCE = Kind(
    "another source under the name",
    IMPOSSIBLE,
    "its stored positions are those of the former source; inject the new one under another name, "
    'inject(..., name="…"), and remove this one when it has been read',
)
PATHS = Kind(
    "other paths of the same files",
    FOLLOWS,
    "a stored position has a proof of the bytes before it: a worker that finds another file there "
    "stops, and reads nothing of it; where no row is acknowledged yet, there is nothing to prove",
)
LATENESS = Kind(
    "another lateness",
    FOLLOWS,
    "from the next row on; the low watermark, which has been promised, does not go back",
)
SINK_ADDED = Kind(
    "an additional sink",
    FOLLOWS,
    "it begins with the records that new code produces",
)
SINK_MISSING = Kind(
    "a sink less",
    FOLLOWS,
    "its rows and files stay as they are",
)
FILES_AGAIN = Kind(
    "other files of JSON lines in the place of former ones",
    IMPOSSIBLE,
    "the stored length is that of the former files; write to the new directory by a step of its "
    "own: JsonLinesFiles(..., by=...)",
)

# -- rules that user code has -------------------------------------------------------------------

STATE_RULE = Kind(
    "another rule that stored state was made by",
    IMPOSSIBLE,
    "state of the former rule would be misread, or never read again; add the computation under "
    "another name, for other panes, and remove this one when its last window has closed",
)
FOLD = Kind(
    "another fold of windows, with a new version",
    FOLLOWS,
    "from the next record on; windows that are open have parts of both",
)
FOLD_UNCONFIRMED = Kind(
    "another fold of windows",
    NEEDS,
    "windows that are open would have parts of both. If the results are the same, or if you want "
    "that, confirm the change: Fold(..., version={version}), or for a ready-made one "
    "dataclasses.replace(FOLD, version={version}). Otherwise add the computation under another "
    "name, for other panes, and remove this one when its last window has closed",
)
RULE = Kind(
    "another rule for later records",
    FOLLOWS,
    "from the next record on; records that the former rule has removed do not come back",
)

# -- types ---------------------------------------------------------------------------------------

TYPE_GROWN = Kind(
    "a wider type (optional fields, more types, more collections)",
    TAKEN,
)
TYPE_BACK = Kind(
    "a former type, of which the deployed one has more",
    FOLLOWS,
    "the additional fields are lost from each value that is written again",
)
TYPE_MIGRATED = Kind(
    "a new version of a type",
    FOLLOWS,
    "each stored value is migrated when it is read, or by millwheel migrate --states; until then "
    "the views show NULL in its columns, but for those that the migration says it leaves alone",
)
STREAM_MIGRATED = Kind(
    "a new version of a stream's type",
    FOLLOWS,
    "each stored value is migrated when it is read",
)
TYPE_VERSION = Kind(
    "the type changed without a new version",
    NEEDS,
    "stored values might be misread:\n{differences}\nSet version = {version} and give {attribute} "
    "= {{{stored}: upgrade}}, where upgrade turns the old JSON into the new",
)
TYPE_STEPS = Kind(
    "a new version without a migration to it",
    NEEDS,
    "it goes from version {stored} to {version}, but {attribute} has no entry for version "
    "{missing}",
)
ENTRIES_LEFT = Kind(
    "a collection of a state less",
    FOLLOWS,
    "its entries stay in the store, and no code reads them: orphaned state, which millwheel status "
    "shows as long as there is any; to delete it: millwheel migrate {pipeline} --allow-drop",
)
TYPE_DOWN = Kind(
    "a former version of a type",
    NEEDS,
    "it is stored as version {stored}, but this code knows only version {version}; deploy the "
    "newer code, or, to go back, give {attribute} = {{{entries}}}, where down turns the JSON of "
    "that version into that of the one before",
)

# -- keys ----------------------------------------------------------------------------------------

KEYS = Kind(
    "another key extractor",
    FOLLOWS,
    "records that are not acknowledged yet are sent again under the new keys, and count once; "
    "state of keys that no record has any more stays, and nothing reads it",
)
KEYS_UNCONFIRMED = Kind(
    "other code of a key extractor, for stored state",
    NEEDS,
    "the code changed, and {name!r} keeps state by its keys: state of keys "
    "that it extracts no more would stay behind, and no code would read it.\n"
    "If the keys are the same as before, or if you want that, confirm the change: .by(..., "
    "version={version}). If the old state should continue under other keys, add the computation "
    "under another name as well; the view state_of_{name} shows its state",
)
KEYS_BEFORE = Kind(
    "a former version of a key extractor",
    NEEDS,
    "it is deployed as version {stored}, but this code knows only version {version}; deploy the "
    "newer code, or, to go back to the former keys, give them version = {next}",
)
KEYS_BUNDLED = Kind(
    "another key extractor, before an open bundle",
    NEEDS,
    "a numbered bundle of {name!r} is open: its records would come again under other keys, and "
    "it would wait for them for ever. Start the former code, pause the injectors until the bundle "
    "is delivered, and deploy then",
)
KEYS_PARKED = Kind(
    "another key extractor, before parked keys",
    NEEDS,
    "{name!r} has parked keys (see the view parked_keys): the records that wait in them would "
    "run under their former keys, and later ones overtake them under the new keys. Retry or "
    "discard them first: millwheel dead-letters list --computation {name} --waiting",
)
KEYS_RUNNING = Kind(
    "another key extractor, while former code runs",
    NEEDS,
    "workers of the former code run ({workers}): records that are on their way would count under "
    "both keys. Stop all workers, and start them with the new code; a crashed worker counts until "
    "its lease has expired",
)

# -- tables of sinks -----------------------------------------------------------------------------

COLUMN_ADDED = Kind(
    "an additional column that may be None, or has a default",
    FOLLOWS,
    "it is added; rows that were written before have the default, or NULL",
)
COLUMN_REQUIRED = Kind(
    "an additional column that every row needs",
    NEEDS,
    "rows that are there have no value for it; let the field be None, or give it a default; or, if "
    "the column had another name, say so: Table(..., renamed_from={{{column!r}: NAME}})",
)
COLUMN_NULLABLE = Kind("a column that may be None from now on", TAKEN)
COLUMN_MISSING = Kind(
    "a column less",
    FOLLOWS,
    "the column stays, and is NULL in rows that are written from now on; to drop it afterwards: "
    "millwheel migrate {pipeline} --allow-drop",
)
COLUMN_RENAMED = Kind(
    "another name of a column, by `renamed_from`",
    FOLLOWS,
    "the column is renamed, with all its values; statements that have its former name fail",
)
COLUMN_RENAMED_RUNNING = Kind(
    "another name of a column, while former code runs",
    NEEDS,
    "workers of the former code run ({workers}), and write the column under its former name. Stop "
    "all workers, and start them with the new code; a crashed worker counts until its lease has "
    "expired",
)
COLUMN_WIDER = Kind(
    "another type of a column that has each stored value",
    FOLLOWS,
    "Postgres rewrites the table, which nobody else can use meanwhile",
)
COLUMN_WIDER_LARGE = Kind(
    "another type of a column, in a large table",
    NEEDS,
    "the table has {megabytes} MB, and nobody could use it while it is rewritten; change column "
    "{column} of table {pipeline}.{table} to type {type} by SQL, at a quiet time",
)
COLUMN_TYPE = Kind(
    "another type of a column, which may not have each stored value",
    NEEDS,
    "write to a column of another name; or, if the values fit, stop the workers, and change column "
    "{column} of table {pipeline}.{table} to type {type} by SQL",
)
COLUMN_FOREIGN = Kind(
    "a column that was made by hand, and that every row needs",
    FOLLOWS,
    "rows of this code have no value for it: unless the table has a trigger that sets one, "
    "Postgres refuses each row. Give the row type a field for it, or let column {column} of table "
    "{pipeline}.{table} be NULL, or have a default, by SQL",
)
TABLE_KEY = Kind(
    "another key of a table",
    IMPOSSIBLE,
    "the rows that are there are identified by the former key; write to a table of another name",
)
TABLE_INDEX = Kind(
    "a table that was made by hand, without a unique index",
    NEEDS,
    "table {pipeline}.{table} has no unique index on ({columns}), so rows cannot be {use}; create "
    "one",
)

KINDS: Mapping[str, tuple[Kind, ...]] = {
    "Steps": (
        NODE_ADDED, NODE_MISSING, NODE_BACK, STEP_MISSING, STEP_BACK, NODE_KIND, NODE_RENAMED,
        CLASS, EXTRACTOR,
    ),
    "Wiring": (
        INPUT_ADDED, INPUT_MISSING, INPUT_MISSING_HELD, INPUT_MANNER, WRITES_ADDED,
        WRITES_MISSING, WRITES_MISSING_SENT, WRITES_MISSING_WEAK, GUARANTEE,
    ),
    "Sources and sinks": (SOURCE, PATHS, LATENESS, SINK_ADDED, SINK_MISSING, FILES_AGAIN),
    "Windows, joins, and rules of your own": (STATE_RULE, FOLD_UNCONFIRMED, FOLD, RULE),
    "Types of states and streams": (
        TYPE_GROWN, TYPE_BACK, TYPE_MIGRATED, STREAM_MIGRATED, TYPE_VERSION, TYPE_STEPS, TYPE_DOWN,
        ENTRIES_LEFT,
    ),
    "Keys": (
        KEYS, KEYS_UNCONFIRMED, KEYS_BEFORE, KEYS_BUNDLED, KEYS_PARKED, KEYS_RUNNING,
    ),
    "Tables": (
        COLUMN_ADDED, COLUMN_REQUIRED, COLUMN_NULLABLE, COLUMN_MISSING, COLUMN_RENAMED,
        COLUMN_RENAMED_RUNNING, COLUMN_WIDER, COLUMN_WIDER_LARGE, COLUMN_TYPE, COLUMN_FOREIGN,
        TABLE_KEY, TABLE_INDEX,
    ),
}  # fmt: skip
"""All kinds, by part of the page."""

MISSING, BACK = frozenset({NODE_MISSING, STEP_MISSING}), frozenset({NODE_BACK, STEP_BACK})
MIGRATED = frozenset({TYPE_MIGRATED, STREAM_MIGRATED})

UNCONFIRMED = frozenset(
    {
        NODE_ADDED, INPUT_ADDED, WRITES_ADDED, PATHS, LATENESS, SINK_ADDED, SINK_MISSING, RULE,
        COLUMN_ADDED,
    }
)  # fmt: skip
"""Kinds with a consequence that leaves all stored data as it is: `millwheel dev` does not ask."""
