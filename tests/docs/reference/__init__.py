"""The reference, made from code: ``python -m tests.docs.reference`` writes docs/reference."""
