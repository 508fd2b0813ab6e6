"""Profiles of a few steps: request, trace, split of the time, merged trace."""
