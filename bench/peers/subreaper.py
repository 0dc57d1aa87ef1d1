"""``python subreaper.py COMMAND ...``: run a command, and adopt its orphaned processes.

A process becomes a child of this one, instead of init's, when its parent ends (prctl(2),
PR_SET_CHILD_SUBREAPER). All processes that the command started thus count as this process's
descendants.
"""

import ctypes
import os
import subprocess
import sys

PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    """Run the command and return its exit code."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    process = subprocess.Popen(sys.argv[1:])
    while True:
        pid, status = os.wait()
        if pid == process.pid:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())
