"""Nexmark: questions about an online auction, the usual yardstick of stream engines.

People register, open auctions and bid. ``millwheel run examples.nexmark:q5`` runs one query, in a
pipeline ``nexmark_q5``, and writes its answer to the table ``q5``:

=========  =====================================================================================
``q0``     every bid as it is
``q1``     every bid in another currency
``q2``     the prices bid on some auctions
``q3``     auctions of one category with their sellers, if these live in one of three states
``q4``     what auctions of a category are sold for, in sliding windows (``q4_sql``: so far)
``q5``     the auctions with the most bids, in sliding windows (``q5_sql``: every 2 s)
``q6``     the mean of each seller's last ten winning prices
``q7``     the highest bids of each window
``q8``     who registered and opened an auction in the same window
``q9``     the winning bid of each auction
``q11``    bids of each bidder and session
``q12``    bids of each bidder in windows of processing time
=========  =====================================================================================

What comes later than the watermark waits (``NEXMARK_LATENESS``) is left out of the answers that
depend on time; it is in the tables ``late_people``, ``late_auctions`` and ``late_bids``, and counted.

The events are made by a generator, the same ones in every run, or read from files:

======================  ========================================================================
``NEXMARK_EVENTS``      how many events there are, of all kinds together (100,000)
``NEXMARK_GENERATORS``  generators side by side, each with its share of the events (1)
``NEXMARK_RATE``        events in a second of event time, of all generators together (10,000)
``NEXMARK_BASE_TIME``   time of the first event: ISO, or ms since 1970 (2015-07-15T00:00:00Z)
``NEXMARK_GROUP``       events shuffled among themselves: out of order, never late (1: in order)
``NEXMARK_LATE``        probability of coming up to 3 s late (0)
``NEXMARK_LATENESS``    seconds that the watermark stays behind (as far as is needed: 3 if there
                        are late events, else 0; less, and some events are late)
``NEXMARK_DIR``         read ``person.jsonl``, ``auction.jsonl`` and ``bid.jsonl`` there instead;
                        `examples.nexmark.sources` says how they look
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
