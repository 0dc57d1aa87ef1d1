"""Ownership: claiming intervals, handing them over, placing them on workers."""
