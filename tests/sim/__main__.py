"""``python -m tests.sim``: see `tests.sim.command`."""

import sys

from tests.sim.command import main

sys.exit(main())
