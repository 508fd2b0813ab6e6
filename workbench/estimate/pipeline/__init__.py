"""Pipeline schedules: their orders, their simulation in time, and their time in closed form.

``simulate_pipeline(schedule("1f1b", 4, 16), 1.0, 2.0)`` places every pass; `pipeline_seconds`
answers with the total alone, in microseconds, for the planner.
"""

from workbench.estimate.pipeline.run import PipelineRun, ScheduledPass, simulate_pipeline
from workbench.estimate.pipeline.schedules import Operation, Schedule, schedule
from workbench.estimate.pipeline.time import pipeline_seconds

__all__ = [
    "Operation",
    "PipelineRun",
    "Schedule",
    "ScheduledPass",
    "pipeline_seconds",
    "schedule",
    "simulate_pipeline",
]
