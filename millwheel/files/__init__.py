"""Files as sources: JSON Lines and CSV; plain, gzipped, or a member of a zip file.

A file is one partition and is *replayable*: the same row has the same number in every run,
so rows are not stored, and only a position is (I1). What makes that safe:

* **A row's number depends on the file's bytes alone**, never on how they were read: only
  ``\\n`` ends a line, blank lines are no rows, and a bad row counts like a good one.
* **A position proves the past, and no more than that.** It covers each byte before the first row
  that is not acknowledged. A file that is read once is proved by a digest of all these bytes,
  which are hashed again on `open`; a file that is followed, which may be large, by its inode and
  by fingerprints. What is behind the position may be corrected before it is read again.

**The end of a file that is read once.** A last line without a newline is a row if it is a good one.
Otherwise it may be half written: it is left alone, reading ends with an error that says so, and
the next run reads the completed line. If a row that was taken this way turns out longer after it
was processed, the longer line is a bad row: the error policy decides. A CSV quote that is
still open at the end is an error and not a row: the rows behind it cannot be told from its text.

**Damage inside a compressed file** is found late: the checksum stands at the end, and what a
flipped bit unpacks to may look like rows. If such rows were processed, the sound file is then
refused as another one: start over. (A file that was merely cut off gives true rows up to the cut.)
"""

from millwheel.files.sources import Csv, JsonLines

__all__ = ["Csv", "JsonLines"]
