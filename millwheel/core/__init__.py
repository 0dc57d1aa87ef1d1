"""Shared by all rooms: records, their encoding, time, names, addresses. It knows no pipeline."""
