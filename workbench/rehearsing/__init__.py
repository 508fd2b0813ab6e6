"""A planned run played on a simulated clock: interruptions, faults and dollars, no training.

`rehearse` plays what a plan says: its steps, checkpoints, restarts and prices, with interruptions
drawn from the plan's own rates or from a trace. It writes a run directory that every face reads and
that says "rehearsal" everywhere. Nothing of it is a measurement: no calibration, no correction and
no comparison takes it for one.

=================  =================================================================
`interruptions`    when the job is interrupted, and by what: drawn, traced, or asked for
`schedule`         the run as attempts, work, checkpoints and rented machines; pure
`bill`             dollars of the machines that were rented so far; pure
`cards`            what every GPU shows at a moment
`driver`           a simulated NVML, which shows the first node's GPUs to any process
`player`           plays a schedule, at a chosen speed, into a run directory
=================  =================================================================
"""

from workbench.rehearsing.rehearse import Rehearsal, rehearse

__all__ = ["Rehearsal", "rehearse"]
