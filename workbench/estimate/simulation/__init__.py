"""The exact simulation of training memory: a child process with fake tensors, and its parent side.

Parent side, without torch: ``result`` (what comes back) and ``process`` (the child's handle).
Child side: ``child`` (entry point), ``build`` (shape -> torch module), ``heads`` (head and loss),
``layouts`` (the strategy), ``optimizers``, ``step`` (one training step), ``pipeline`` (its stages),
``tracker`` (sees every storage), ``trace`` (what it saw) and ``allocator`` (what CUDA's allocator
would have reserved for it). A user's own step runs in ``user``, on the card of ``cuda`` and
``cuda_queries`` and among the ranks of ``distributed``. ``refusal`` says why something cannot be
simulated.
"""
