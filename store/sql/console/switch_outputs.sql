-- Withholds what leaves the store from now on, or not; gives a row if that is a change.
UPDATE {pipeline} SET withholds = %(withholds)s WHERE withholds <> %(withholds)s RETURNING origin
