"""Leaves quietly with exit code 0 and no step, like the examples that find too few GPUs."""

print("Unable to locate sufficient 2 gpus")
