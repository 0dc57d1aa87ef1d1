"""``python -m tests.campaign``: see `tests.campaign.command`."""

import sys

from tests.campaign.command import main

sys.exit(main())
