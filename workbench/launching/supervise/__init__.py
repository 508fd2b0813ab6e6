"""The detached process beside a run: it starts the launcher, monitors, stops, restarts, ends."""
