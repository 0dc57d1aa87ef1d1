"""Nexmark: queries about an online auction, the usual benchmark of stream engines.

People register, open auctions and bid. ``millwheel run examples.nexmark:q5`` runs one query, in a
pipeline ``nexmark_q5``, and writes its answer to the table ``q5``:

=========  =====================================================================================
``q0``     every bid, unchanged
``q1``     every bid in another currency
``q2``     the prices bid on some auctions
``q3``     auctions of one category with their sellers, if these live in one of three states
``q4``     the mean selling price of each category, in sliding windows (``q4_sql``: so far)
``q5``     the auctions with the most bids, in sliding windows (``q5_sql``: every 2 s)
``q6``     the mean of each seller's last ten winning prices
``q7``     the highest bids of each window
``q8``     people who registered and opened an auction in the same window
``q9``     the winning bid of each auction
``q11``    bids of each bidder and session
``q12``    bids of each bidder in windows of processing time
=========  =====================================================================================

Events later than the watermark allows (``NEXMARK_LATENESS``) are left out of the answers that
depend on time; they are counted, and are in the tables ``late_people``, ``late_auctions`` and
``late_bids``.

The events come from a generator, the same ones in every run, or from files:

======================  ========================================================================
``NEXMARK_EVENTS``      number of events, of all kinds together (100,000)
``NEXMARK_GENERATORS``  parallel generators, each with its share of the events (1)
``NEXMARK_RATE``        events in a second of event time, of all generators together (10,000)
``NEXMARK_BASE_TIME``   time of the first event: ISO, or ms since 1970 (2015-07-15T00:00:00Z)
``NEXMARK_GROUP``       size of the groups of shuffled events, which are never late (1: in order)
``NEXMARK_LATE``        probability that an event arrives up to 3 s late (0)
``NEXMARK_LATENESS``    seconds by which the watermark stays behind (the default is enough for all
                        events: 3 if there are late events, 0 otherwise)
``NEXMARK_DIR``         directory from which ``person.jsonl``, ``auction.jsonl`` and ``bid.jsonl``
                        are read instead; `examples.nexmark.sources` describes the format
======================  ========================================================================

``python -m examples.nexmark --write DIR`` writes the events to such files.
"""

from examples.nexmark.q0 import pipeline as q0
from examples.nexmark.q1 import pipeline as q1
from examples.nexmark.q2 import pipeline as q2
from examples.nexmark.q3 import pipeline as q3
from examples.nexmark.q4 import pipeline as q4
from examples.nexmark.q5 import pipeline as q5
from examples.nexmark.q5 import sql_pipeline as q5_sql
from examples.nexmark.q6 import pipeline as q6
from examples.nexmark.q7 import pipeline as q7
from examples.nexmark.q8 import pipeline as q8
from examples.nexmark.q9 import pipeline as q9
from examples.nexmark.q11 import pipeline as q11
from examples.nexmark.q12 import pipeline as q12

__all__ = ["q0", "q1", "q2", "q3", "q4", "q5", "q5_sql", "q6", "q7", "q8", "q9", "q11", "q12"]
