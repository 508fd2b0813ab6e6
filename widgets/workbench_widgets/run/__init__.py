"""Panels of one run: dashboard, checkpoints, profile."""
