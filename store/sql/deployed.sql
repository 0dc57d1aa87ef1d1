-- What is deployed.
SELECT name, graph::text FROM {pipeline}
