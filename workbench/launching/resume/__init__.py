"""A run goes on: its attempts, its recorded options, and the checkpoint it starts from."""
