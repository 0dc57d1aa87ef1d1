-- Makes a sequence as the origin has it.
CREATE SEQUENCE {sequence} AS {type} START {start} INCREMENT {increment} MINVALUE {least} MAXVALUE {greatest} CACHE {cache} {cycle}
