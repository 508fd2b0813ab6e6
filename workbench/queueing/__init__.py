"""Several runs on one machine: which waits for which devices, and what starts next.

    run = wb.launch("train.py", queue=True)        # filed; it starts when its devices are free
    Queue().jobs()                                 # who waits, where, from when, at what price

The rule is a strict order: higher priority first, among equal ones the first filed. Nothing passes
a run that waits, however small it is, unless it can never be in its way: a run may start before
others when it uses no device that one of those before it could use. So a large run is never
starved by small ones; only a run of higher priority can pass it.
"""

from workbench.queueing.queue import Queue

__all__ = ["Queue"]
