"""Measurements. ``make bench`` runs them; nothing here decides a test."""
