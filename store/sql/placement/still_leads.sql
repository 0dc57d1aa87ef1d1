-- Gives a row if no other worker has led since a term began; none begins before this transaction has ended.
SELECT FROM {leader} WHERE term = %(term)s FOR SHARE
