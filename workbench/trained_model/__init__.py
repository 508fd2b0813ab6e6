"""The model that a run has trained: out of any checkpoint, exported, and asked.

Nothing here loads torch; what does is below `worker` and runs in a process of its own.
"""
