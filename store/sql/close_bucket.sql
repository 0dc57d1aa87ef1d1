-- Ends a bucket before its time; stamps not given yet go to the next one.
UPDATE {bucket} SET high = %(high)s WHERE id = %(id)s AND high > %(high)s
