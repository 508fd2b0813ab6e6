"""Exports to other engines, and several machines."""
