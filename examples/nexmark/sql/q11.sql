-- User sessions: bids of each bidder, until there is none for 10 s.
CREATE TABLE q11 (
    bidder bigint, session_start timestamptz, session_end timestamptz, bids bigint
);

INSERT INTO q11
SELECT bidder, window_start, window_end, count(*)
FROM SESSION(bids, date_time, INTERVAL '10 seconds')
GROUP BY bidder, window_start, window_end;
