"""Cost calculator: hours and dollars of a finished run, term by term."""
