"""Everything that must be true on one real GPU, in the order of its worth.

    python -m tests.gpu.battery --minutes 9 --out DIR     # or: make gpu
    python -m tests.gpu.battery --list
    python -m tests.gpu.battery --device cpu --out DIR    # the same code at a tiny size

Each case runs in a process of its own with a time limit; its result is appended to
DIR/results.jsonl before the next case starts. Started again with the same DIR, the battery goes on
with the cases that have no result yet. ``--keep`` copies the results into tests/gpu/results, where
they are committed as data.
"""
