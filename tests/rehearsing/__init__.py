"""Planned runs on a simulated clock, recounted from what they wrote."""
