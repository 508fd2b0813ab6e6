"""Fault lab: inject a real fault into a small training and watch the finding."""
