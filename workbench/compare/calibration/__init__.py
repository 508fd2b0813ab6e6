"""Measuring the rates of this host: matrix products, memory, collectives, steps, storage."""
