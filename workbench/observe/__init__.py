"""Reads a run: metric lines, hardware samples, the bounded view, summaries and the report."""
