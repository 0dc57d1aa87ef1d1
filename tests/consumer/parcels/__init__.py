"""Parcels: which are late, how many each depot handles, and which scans have no parcel."""
