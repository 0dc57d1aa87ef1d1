"""Other engines on the same input, each beside millwheel in the same pair of runs."""
