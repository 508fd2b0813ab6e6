"""A notebook's cell, or a function, as the script of a run: each rank is a new process."""
