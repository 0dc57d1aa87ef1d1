-- Currency conversion.
CREATE TABLE q1 (auction bigint, bidder bigint, price numeric, date_time timestamptz, extra text);

INSERT INTO q1 SELECT auction, bidder, 0.908 * price, date_time, extra FROM bids;
