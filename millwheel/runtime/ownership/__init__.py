"""Which worker owns which interval."""
