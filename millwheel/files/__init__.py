r"""Files as sources: JSON Lines and CSV; plain, gzipped, or a member of a zip file.

A file is one partition and is *replayable*: a row has the same number in every run, so the store
keeps only a position and no rows (I1). Two rules make that safe:

* **A row's number depends only on the file's bytes**: only ``\n`` ends a line, blank lines are not
  rows, and a bad row counts like a good one.
* **A position proves exactly the acknowledged bytes**, those before the first unacknowledged row:
  by a digest, for which they are hashed again on `open`; for a followed file, which may be large,
  by the inode with fingerprints. Bytes after it may be corrected before they are read again.

A last line without a newline is a row if it is valid. Otherwise it may be half written: reading
ends with an error, and the next run reads the completed line. If such a row grows after it was
processed, the longer line is a bad row. A CSV quote that is still open at the end is an error and
not a row: rows after it look like quoted text.

Damage inside a compressed file is detected late: the checksum is at the end, and the bytes unpacked
after a flipped bit may look like rows. If such rows were processed, the intact file is later
rejected as a different one, and the pipeline has to start over. (A truncated file gives correct
rows up to its end.)
"""

from millwheel.files.sources import Csv, JsonLines

__all__ = ["Csv", "JsonLines"]
