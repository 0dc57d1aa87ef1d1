"""Where the records of a stream go: its readers, their keys, and the destinations of their
slots."""
