-- The directories of each bid's address.
CREATE TABLE q22 (
    auction bigint, bidder bigint, price bigint, channel text, dir1 text, dir2 text, dir3 text
);

INSERT INTO q22
SELECT auction, bidder, price, channel,
    split_part(url, '/', 4), split_part(url, '/', 5), split_part(url, '/', 6)
FROM tagged_bids;
