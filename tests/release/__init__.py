"""The checks before a release: ``make release-check``. Nothing is uploaded."""
