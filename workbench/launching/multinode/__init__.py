"""A run over several nodes: what each node starts, reports and is told."""
