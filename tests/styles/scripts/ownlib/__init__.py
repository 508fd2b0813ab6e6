"""A user's own small library beside the script."""
