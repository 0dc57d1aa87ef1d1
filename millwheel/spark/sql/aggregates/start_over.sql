UPDATE {aggregate} SET read = NULL WHERE name = %(name)s
