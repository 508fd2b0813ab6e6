"""From a checked request to a run directory and its detached supervisor."""
