"""Print the mesh that Accelerate was told from outside."""

from accelerate import Accelerator

accelerator = Accelerator()
mesh = accelerator.parallelism_config
kind = accelerator.distributed_type.value
print(f"dp_shard={mesh.dp_shard_size} tp={mesh.tp_size} {kind}", flush=True)
accelerator.end_training()
