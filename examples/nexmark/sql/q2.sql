-- Selection: the prices bid on some auctions.
CREATE TABLE q2 (auction bigint, price bigint);

INSERT INTO q2 SELECT auction, price FROM bids WHERE auction % 123 = 0;
