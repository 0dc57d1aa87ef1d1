-- Of what the pipeline is a copy, and whether anything of it leaves the store.
SELECT origin, withholds FROM {pipeline}
