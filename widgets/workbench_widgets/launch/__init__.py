"""Launch form and export to other engines."""
