-- Runs several statements in one round trip.
DO {block}
