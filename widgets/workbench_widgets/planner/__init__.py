"""Planner: machines and layouts ranked by cost and time."""
