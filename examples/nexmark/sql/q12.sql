-- Processing time windows. Refused: the result would depend on when the query runs.
CREATE TABLE q12 (bidder bigint, bids bigint, window_start timestamptz, window_end timestamptz);

INSERT INTO q12
SELECT bidder, count(*), window_start, window_end
FROM TUMBLE(bids, now(), INTERVAL '10 seconds')
GROUP BY bidder, window_start, window_end;
