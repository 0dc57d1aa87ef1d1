"""Running and committing the work of a worker's intervals, in order."""
