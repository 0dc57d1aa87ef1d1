"""Files as sources: JSON Lines and CSV; plain, gzipped, or a member of a zip file.

A file is one partition and is *replayable*: the same row has the same offset in every run,
so rows are not stored, and only a position is (design: injectors). What makes that safe:

* **A row's number depends on the file's bytes alone**, never on how they were read: only
  ``\\n`` ends a line, blank lines are no rows, and a bad row counts like a good one.
* **A position proves the past.** It holds a BLAKE2b digest of every byte handed out so
  far, acknowledged or not, since a row that is read again must be the row that it was. On
  `open` these bytes are hashed again. A file may grow; what was read of it may not change.
* **A position is cheap.** A reader remembers *marks*, places between two rows where reading
  can start, one per `read` and per `MARK_ROWS` rows, thinned out when acknowledgements lag.
  Reading resumes at the last mark before the row wanted and skips the rest.

::

    0            mark       acknowledged      read               end of file
    |--------------|--------------|-------------|.....................|
    '------- covered by the digest -------------' may still change

**The end of the file.** A last line without a newline is a row. If the file then goes on
with a newline, nothing happened; if it goes on with anything else, the row was read half
written, and that is an error. A CSV quote that is still open at the end is an error and not
a row: the rows behind it cannot be told from its text, so none is made up. What was read
before an error stays valid; a file repaired *behind* that place is read on from there.

**Damage inside a compressed file** is found late: the checksum stands at the end, and what a
flipped bit unpacks to may look like rows. Such rows are in the digest, so the pipeline stops,
and the sound file is then refused as another one: start over. (A file that was merely cut
off gives true rows up to the cut.)
"""

from millwheel.files.sources import Csv, JsonLines

__all__ = ["Csv", "JsonLines"]
