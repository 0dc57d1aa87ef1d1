"""millwheel: a per-record persistent stream engine on Postgres."""
