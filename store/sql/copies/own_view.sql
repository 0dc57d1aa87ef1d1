-- Gives a view that was made again to its owner.
ALTER VIEW {view} OWNER TO {owner}
