"""Which records were seen: Bloom filters, exact tables by hour, and the ids of weak productions."""
