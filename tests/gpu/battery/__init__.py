"""Everything that must be true on one real GPU, in the order of its worth.

    python -m tests.gpu.battery --minutes 9 --out DIR     # or: make gpu
    python -m tests.gpu.battery --list
    python -m tests.gpu.battery --device cpu --out DIR    # the same code at a tiny size
    python -m tests.gpu.battery --simulated --out DIR     # that on a GPU that is not there

Each case runs in a process of its own with a time limit; its result is appended to
DIR/results.jsonl before the next case starts. Killed at any moment and started again with the same
DIR, the battery goes on with the cases that have no result yet. ``--keep`` writes the results into
tests/gpu/results, where they are committed as data.

``--simulated`` puts the simulated NVML in place (`workbench.rehearsing.driver`): launches take its
GPU for a real one, their supervisors read it, their ranks compute on the CPU. What needs a GPU that
computes is skipped by name. Its results are in DIR/simulated.jsonl, each row says "simulated", and
no reader of measurements takes them.
"""
