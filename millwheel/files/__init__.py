r"""Files as sources: JSON Lines and CSV; plain, gzipped, or a member of a zip file.

A file is one partition and is *replayable* (I1): a row's number depends only on the file's bytes
(only ``\n`` ends a line, blank lines are not rows, a bad row counts), and a position proves exactly
the acknowledged bytes, by a digest or, for followed files, by the inode with fingerprints
(``docs/howto/connect/followed-files.md``).

Damage inside a compressed file is detected late, since the checksum is at its end. If rows unpacked
after a flipped bit were processed, the intact file is later rejected as a different one, and the
pipeline has to start over. (A truncated file gives correct rows up to its end.)
"""

from millwheel.files.file_sources import Csv, JsonLines

__all__ = ["Csv", "JsonLines"]
