"""Studies: lists of trials, each a real run in the store, one after the other.

- `trial`: what one trial starts, and what it measured.
- `bench`: what all trials of a study have in common.
- `study`: the file that keeps them, running them, going on where a study was stopped.
- `step_split`: where the time of a run's steps went.
- `sizes`: the trials of a scaling study. `fit`: what they say about sizes that were not run.
- `tuning`: batch size, accumulation, loader workers. `compression`: bytes, loss and time.
"""
