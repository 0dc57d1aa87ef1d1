-- Gives a node another name. Its id stays, by which all that is stored refers to it.
UPDATE {computation} SET name = %(name)s WHERE name = %(former)s AND removed_at IS NULL
