"""The sweeps of a store."""
