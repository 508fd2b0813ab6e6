"""gpt.py's other engine on one device: every degree is 1, but through meshes, DTensor and FSDP2.

torchrun --nproc-per-node 1 model_parallel_probe.py CHECKPOINT_FOLDER <arguments of gpt.py>
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "workbench" / "recipes"))

import corpus
import gpt
import torch.distributed as dist
from model_parallel import ModelParallel


def main() -> None:
    options = gpt.parse_options(sys.argv[2:])
    engine = ModelParallel(options)
    data, _ = (part.to(engine.device) for part in corpus.read_corpus(options.seq_len))
    losses = list[float]()
    for number in range(options.steps):
        batch = corpus.micro_batch(data, engine.share, options.seq_len, key=number, index=0, of=1)
        losses.append(engine.mean(engine.step([batch], gpt.learning_rate(number, options))))
    engine.store.save(Path(sys.argv[1]))
    engine.store.load(Path(sys.argv[1]))
    print("losses", losses[0], losses[-1], flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
