-- Removes whatever a former client of a pooler has left in the session: settings, locks, prepared statements.
DISCARD ALL
