-- Log to a file system: bids with day and minute, for a sink of files by these columns.
CREATE TABLE q10 (
    auction bigint, bidder bigint, price bigint, date_time timestamptz, extra text, day text,
    minute text
);

INSERT INTO q10
SELECT auction, bidder, price, date_time, extra, to_char(date_time, 'YYYY-MM-DD'),
    to_char(date_time, 'HH24:MI')
FROM bids;
