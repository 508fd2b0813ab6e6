"""What a run was made from: source, packages, data, environment; and what of it is another now."""
