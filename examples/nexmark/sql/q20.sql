-- Bids with their auction, if it is of a category.
CREATE TABLE q20 (
    auction bigint, bidder bigint, price bigint, date_time timestamptz, extra text,
    item_name text, description text, initial_bid bigint, reserve bigint, opened timestamptz,
    expires timestamptz, seller bigint, category bigint, auction_extra text
);

INSERT INTO q20
SELECT b.auction, b.bidder, b.price, b.date_time, b.extra, a.item_name, a.description,
    a.initial_bid, a.reserve, a.date_time, a.expires, a.seller, a.category, a.extra
FROM bids b JOIN auctions a ON b.auction = a.id
WHERE a.category = 10
RETAIN UNBOUNDED;
