"""Strategy picker: layouts, and which rank holds what."""
