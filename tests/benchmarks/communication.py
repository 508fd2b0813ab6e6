"""Bytes that one rank hands to collectives in one optimizer step, beside the estimate's formulas.

Usage: python -m tests.benchmarks.communication [ddp fsdp fsdp-grad-op hsdp tp2 tp2-sequence]

Counted is the payload, as network.py counts it (`whole_bytes`): an all-reduce's tensor, the whole
that an all-gather makes or a reduce-scatter takes; fp32, gloo, real ranks. Expected is what the
estimate's sizes (`rank_elements`, and `_tp_seconds` on links where a byte takes a second) say.
Left out of both: barriers, the loss's mean, clipping, and under tensor parallelism embedding and
head (their bytes cancel in the difference of two depths, which is what is compared).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

RECIPES = Path(__file__).parents[2] / "workbench" / "recipes"
LAYERS, HIDDEN, HEADS, LENGTH, BATCH = 2, 128, 4, 64, 4
RANKS = {"ddp": 2, "fsdp": 2, "fsdp-grad-op": 2, "hsdp": 4, "tp2": 2, "tp2-sequence": 2}
WITHIN = 0.02


def expected(name: str) -> dict[str, float]:
    """Bytes per kind of collective, of all blocks and ends (tp: of one block)."""
    from workbench.describe import Model, Strategy, Workload
    from workbench.estimate.block_time import _tp_seconds
    from workbench.estimate.context import rank_context
    from workbench.estimate.network import Group, Groups, Links
    from workbench.estimate.rank import ranks_of

    model = Model(
        name="gpt",
        layers=LAYERS,
        hidden=HIDDEN,
        heads=HEADS,
        mlp_hidden=4 * HIDDEN,
        vocab=256,
        gated_mlp=False,
        norm="rmsnorm-plain",
        tied_embeddings=False,
    )
    workload = Workload(model=model, seq_len=LENGTH, micro_batch=BATCH, precision="fp32")
    if name.startswith("tp2"):
        strategy = Strategy.parse("tp", 2).with_options(sequence_parallel="sequence" in name)
        pair = Group(size=2, per_node=2)
        who = Groups(
            tp=pair,
            cp=pair,
            shard=pair,
            replicate=pair,
            data=pair,
            ep=pair,
            expert_data=pair,
            expert_shard=pair,
            stage_crosses_nodes=False,
        )

        class Payload(Links):
            def gather_seconds(self, whole_bytes: float, group: Group) -> float:
                return whole_bytes

            reduce_seconds = gather_seconds

        links = Payload(link=1.0, port=1.0, domain=2, network_hop=0.0)
        forward = _tp_seconds(rank_context(workload, strategy), links, who, moe=False)
        if not strategy.sequence_parallel:
            return {"all-reduce": 2 * forward}  # backward: as much again
        return {"all-gather": forward, "reduce-scatter": forward}  # half of each, there and back
    strategy = Strategy.parse(name, RANKS[name])
    sizes = ranks_of(workload, strategy)[0].elements
    weights, blocks = 4.0 * sizes.trained, 4.0 * sizes.block
    if name == "ddp":
        return {"all-reduce": weights}
    again = blocks if strategy.fsdp.reshard_after_forward else 0.0  # FSDP2 keeps the root gathered
    found = {"all-gather": weights + again, "reduce-scatter": weights}
    if strategy.dp_replicate > 1:
        found["all-reduce"] = weights / strategy.dp_shard
    return found


def counted(name: str) -> dict[str, float]:
    """The same from a real step (tp: what two blocks more add, halved)."""
    with tempfile.TemporaryDirectory() as folder:
        result = Path(folder, "result.json")
        start = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        done = subprocess.run(
            [*start, "--nproc-per-node", str(RANKS[name]), __file__, name, str(result)],
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
        if not result.exists():
            raise RuntimeError(done.stderr[:4000])
        return json.loads(result.read_text())


# --- In the ranks --------------------------------------------------------------------------------


def counter():
    """A dispatch mode that adds up payloads by kind."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    def size(what) -> int:
        if isinstance(what, torch.Tensor):
            return what.numel() * what.element_size()
        return sum(size(one) for one in what) if isinstance(what, (list, tuple)) else 0

    # Operation -> its kind and which argument is the whole.
    whole = {
        "c10d::allreduce_": ("all-reduce", 0),
        "c10d::allgather_": ("all-gather", 0),
        "c10d::_allgather_base_": ("all-gather", 0),
        "c10d::reduce_scatter_": ("reduce-scatter", 1),
        "c10d::_reduce_scatter_base_": ("reduce-scatter", 1),
        "_c10d_functional::all_reduce": ("all-reduce", 0),
        "_c10d_functional::all_reduce_": ("all-reduce", 0),
        "_c10d_functional::reduce_scatter_tensor": ("reduce-scatter", 0),
    }

    class Count(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.found: Counter[str] = Counter()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            name = func._schema.name
            if name in whole:
                kind, at = whole[name]
                self.found[kind] += size(args[at])
            elif name == "_c10d_functional::all_gather_into_tensor":
                self.found["all-gather"] += size(args[0]) * args[1]
            elif name.startswith("c10d::"):
                self.found[f"other: {name}"] += size(args)
            return func(*args, **(kwargs or {}))

    return Count()


def step_bytes(name: str, layers: int) -> Counter[str]:
    import torch
    import torch.distributed as dist
    from gpt_model import GPT, initialise, loss
    from tensor_parallel import split
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    model = GPT(layers, HIDDEN, HEADS)
    initialise(model, HIDDEN, 0)
    ranks = dist.get_world_size()
    if name.startswith("tp2"):
        split(model, init_device_mesh("cpu", (ranks,)), sequence_parallel="sequence" in name)
    elif name == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    else:
        grid = (2, ranks // 2) if name == "hsdp" else (ranks,)
        mesh = init_device_mesh("cpu", grid, mesh_dim_names=("copies", "shard")[-len(grid) :])
        for block in model.blocks.values():
            fully_shard(block, mesh=mesh, reshard_after_forward=name != "fsdp-grad-op")
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inputs = torch.zeros(BATCH, LENGTH, dtype=torch.long)
    for _ in range(2):  # the first step settles buckets and shapes
        with counter() as count:
            loss(model(inputs), inputs).backward()
            optimizer.step()
            optimizer.zero_grad()
    return count.found


def ranks_main(name: str, result: str) -> None:
    sys.path.insert(0, str(RECIPES))
    import torch.distributed as dist

    dist.init_process_group("gloo")
    found = step_bytes(name, LAYERS)
    if name.startswith("tp2"):
        deeper = step_bytes(name, LAYERS + 2)
        found = {kind: (deeper[kind] - found[kind]) / 2 for kind in deeper}
    if dist.get_rank() == 0:
        Path(result).write_text(json.dumps(found))
    dist.destroy_process_group()


def main() -> int:
    failed = 0
    print(f"{'strategy':14}{'collective':>16}{'counted':>12}{'expected':>12}{'ratio':>8}")
    for name in sys.argv[1:] or RANKS:
        found, wanted = counted(name), expected(name)
        for kind in sorted({*found, *wanted}):
            one, other = found.get(kind, 0.0), wanted.get(kind, 0.0)
            ratio = one / other if other else float("nan")
            bad = other and abs(ratio - 1) > WITHIN
            failed += bool(bad)
            print(f"{name:14}{kind:>16}{one:12,.0f}{other:12,.0f}{ratio:8.3f}{' !' * bool(bad)}")
    return 1 if failed else 0


if __name__ == "__main__":
    if "RANK" in os.environ:
        ranks_main(*sys.argv[1:])
    else:
        sys.exit(main())
