"""Checkpoints that are whole, notices of pre-emption, and what a restart is allowed to do.

`Recovery` goes to ``wb.launch("gpt", recovery=Recovery(restarts=3, preemption="aws"))``.
"""

from workbench.recover.policy import Recovery

__all__ = ["Recovery"]
