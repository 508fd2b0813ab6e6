"""Panels of a run store: table of runs, comparison."""
