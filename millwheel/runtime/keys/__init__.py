"""The state of keys: an object for each, entries of maps and lists, and tables that keys share."""
