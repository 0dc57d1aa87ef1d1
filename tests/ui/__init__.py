"""The pages of a store."""
