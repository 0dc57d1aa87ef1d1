-- A serial column's sequence goes with it.
ALTER SEQUENCE {sequence} OWNED BY {column}
