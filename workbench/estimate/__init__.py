"""Pure functions: values in, an `Estimate` of named parts out.

`memory.training_memory`, `step_time.step_time` and `inference.inference_memory` answer; `sizing`
asks them the questions of people. Nothing is imported here: the supervisor of a run needs the names
of the parts alone.
"""
