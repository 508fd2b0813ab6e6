"""Memory calculator: memory of the fullest GPU, and ways to lower it."""
