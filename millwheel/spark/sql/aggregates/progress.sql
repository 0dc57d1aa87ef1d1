SELECT batch, read FROM {aggregate} WHERE name = %(name)s
