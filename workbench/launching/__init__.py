"""From a request to running processes: dry run, detached supervisor, run handles."""
