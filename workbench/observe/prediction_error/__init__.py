"""Prediction beside measurement of one run: each term, its error, and what it is due to."""
