"""How productions leave an interval, where they are not strong: weak, trees, numbered bundles."""
