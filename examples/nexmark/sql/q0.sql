-- Pass through.
CREATE TABLE q0 (auction bigint, bidder bigint, price bigint, date_time timestamptz, extra text);

INSERT INTO q0 SELECT auction, bidder, price, date_time, extra FROM bids;
