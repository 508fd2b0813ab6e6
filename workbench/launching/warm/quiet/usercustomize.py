"""Stands before the user's own while the warm server starts; its forks run theirs (child.py)."""
