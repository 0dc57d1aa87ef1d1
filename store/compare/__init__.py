"""Compares two pipelines of a database, or their savepoints, row by row and at one moment.

Two pipelines that run are at different places of their input. Rows of one that are missing from the
other may be due to records that the other has not processed yet, which is no fault. So each part is
compared as far as a promise of the engine reaches:

**The same place.** All is compared whole if both are complete; or one is a copy of the other, and
neither has committed since; or all partitions of their sources are read and acknowledged equally
far, their watermarks are equal, and no record is on its way.

**Tables**, otherwise. A step's low watermark W promises that each record with a timestamp before W
is processed and its effects are durable, and that no on-time record with such a timestamp will
come. So rows *of* times before the lesser W of the steps that write the table are final on both
sides. The row's time has to be a column. The end of a window is such a time: its pane has the
timestamp of the window's last instant. The start is not, until the whole window has passed W: a
row counts as final if its column lies before W by the length of all windows before the table, which
the stored graph has. Only a column that is named as an end is taken as it is. A pair with one row
at W or later is left out: the later row may have replaced an equal one. A table without a column of
time is compared whole, and differences prove nothing.

**States**, otherwise. The engine removes fixed windows from the state when they have closed, unless
late records may amend them. Entries of windows that have ended before W are compared, as long as
neither side may have removed them; other entries of windows are left out. All other states change
with each record: they are compared whole, and differences prove nothing.

**Timers**, otherwise. Those due before W have fired on both sides, so neither should have any.
Later ones depend on the records since, and wall timers on the clock: both are left out.

Late records break these promises: they change rows before W, on one side sooner than on the other.
So does a column that is earlier than its record's timestamp, for example the time of an order in a
row that its payment makes. `--at` sets an earlier W.

A verdict is ``equal``; ``differs``; or ``undecided``, if rows differ only where differences prove
nothing, or no row is final on both sides. Columns, tables and steps that one side lacks are named,
and not counted: new code adds them.

Values are equal as Postgres compares them (1.0 equals 1.00, and NaN equals NaN); text is compared
by its characters, and a type without an equality by its text.

The server compares, by a full join of pages of both tables in the order of their key; only counts
and the first rows that differ leave it. A page takes some 80 MB of each table, which fits memory.
Measured with 10 million rows of 80 bytes, in another order on disk: 30 s, 130 MB in the server, and
no temporary files. Pages of a tenth took 162 s, a merge of two index scans 134 s, and
two ordered streams to Python 143 s; a join without pages took 11 to 31 s, and 1.4 GB of temporary
files. 10 million states took 72 s, by pages of slots.
"""

from millwheel.store.compare.comparing import CompareOptions, compare
from millwheel.store.compare.comparison import ComparedPart, DifferingRow, PipelineComparison

__all__ = ["CompareOptions", "ComparedPart", "DifferingRow", "PipelineComparison", "compare"]
