"""Other engines on the same input, each in pairs of runs with millwheel."""
