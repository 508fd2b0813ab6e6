"""Measuring: this host (calibration), studies of several runs, profiles, runs beside each other."""
