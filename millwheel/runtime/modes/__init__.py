"""The modes of productions that are not strong: weak, trees, numbered bundles."""
