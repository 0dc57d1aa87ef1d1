SELECT max(number) FROM {generation}
