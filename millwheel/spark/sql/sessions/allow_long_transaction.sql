SET LOCAL transaction_timeout = 0
