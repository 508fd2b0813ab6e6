"""Measurements of this host: calibration and scaling study."""
