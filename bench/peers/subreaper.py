"""``python subreaper.py COMMAND ...``: runs a command, and takes in what its processes leave behind.

A process whose parent has ended becomes a child of this one, not of the system's first (prctl(2),
PR_SET_CHILD_SUBREAPER). So all that the command ever started counts as this process's.
"""

import ctypes
import os
import subprocess
import sys

PR_SET_CHILD_SUBREAPER = 36


def main() -> int:
    """Run it; its exit code."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    process = subprocess.Popen(sys.argv[1:])
    while True:
        pid, status = os.wait()
        if pid == process.pid:
            return os.waitstatus_to_exitcode(status)


if __name__ == "__main__":
    sys.exit(main())
