"""Train with Keras on several devices: tf.distribute.MirroredStrategy, one process for all of them.

    python keras_mirrored.py --replicas 2

Where PyTorch starts one process per GPU, TensorFlow's mirrored strategy copies the model to every
device of one process and adds up the gradients there. Without GPUs, the CPU is divided into virtual
devices, so that the same code path runs on any machine. It needs tensorflow (it brings keras).
"""

# pyright: basic, reportMissingImports=false

import argparse
import os
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path

from recipe_options import Parser, check_positive, options_or_exit


def parse_options(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """Read the command line; ValueError if it cannot be."""
    parser = Parser(description="Train a byte-level model with Keras.", allow_abbrev=False)
    add = parser.add_argument
    add("--replicas", type=int, help="devices to train on; default: all GPUs, or 2 on CPU")
    add("--hidden", type=int, default=64, help="width of the recurrent layer")
    add("--seq-len", type=int, default=32, help="bytes per sequence")
    add("--batch", type=int, default=32, help="sequences per step, over all replicas")
    add("--steps", type=int, default=60, help="optimizer steps")
    add("--lr", type=float, default=5e-3)
    add("--seed", type=int, default=0, help="of the weights")
    options = parser.parse_args(arguments)
    check_positive(parser, options, {"seed"})
    if options.replicas and options.batch % options.replicas:
        parser.error(f"--batch {options.batch} is not a multiple of --replicas {options.replicas}")
    return options


if __name__ == "__main__":
    OPTIONS = options_or_exit(parse_options)
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")  # its start-up notices are not for users
    os.environ["KERAS_BACKEND"] = "tensorflow"  # the strategy is TensorFlow's own

try:
    import keras
    import numpy as np
    import tensorflow as tf
except ImportError as missing:
    print(
        f"keras_mirrored.py needs TensorFlow and Keras ({missing.name} is missing). Next: "
        f"{sys.executable} -m pip install tensorflow-cpu keras (on NVIDIA GPUs: "
        "'tensorflow[and-cuda]' keras)",
        file=sys.stderr,
    )
    sys.exit(2)


def devices(replicas: int | None) -> list[str]:
    """The devices to mirror on; virtual ones where there is no GPU."""
    if tf.config.list_physical_devices("GPU"):
        gpus = tf.config.list_logical_devices("GPU")
        if (replicas or 1) > len(gpus):
            sys.exit(f"--replicas {replicas}: this host has {len(gpus)} GPUs")
        return [device.name for device in gpus[:replicas]]
    (cpu,) = tf.config.list_physical_devices("CPU")
    parts = [tf.config.LogicalDeviceConfiguration() for _ in range(replicas or 2)]
    tf.config.set_logical_device_configuration(cpu, parts)  # before anything has run
    return [device.name for device in tf.config.list_logical_devices("CPU")]


def sequences(length: int, count: int) -> tuple[np.ndarray, np.ndarray]:
    """The bytes of Python's own sources: inputs and targets [count, length], the same each time."""
    folder, text = Path(sysconfig.get_path("stdlib")), b""
    for path in sorted(folder.glob("*.py")):
        text += path.read_bytes()
        if len(text) > 1_000_000:
            break
    starts = np.random.default_rng(0).integers(len(text) - length - 1, size=(count, 1))
    windows = np.frombuffer(text, np.uint8)[starts + np.arange(length + 1)]
    return windows[:, :-1].astype("int32"), windows[:, 1:].astype("int32")


def byte_model(hidden: int) -> keras.Model:
    """Predicts each next byte from those before it, with a recurrent layer."""
    return keras.Sequential(
        [
            keras.layers.Embedding(256, hidden),
            keras.layers.GRU(hidden, return_sequences=True),
            keras.layers.Dense(256),
        ]
    )


def main(options: argparse.Namespace) -> None:
    """Train --steps steps; the global batch is divided among the replicas."""
    strategy = tf.distribute.MirroredStrategy(devices(options.replicas))
    replicas = strategy.num_replicas_in_sync
    if options.batch % replicas:
        sys.exit(f"--batch {options.batch} is not a multiple of the {replicas} replicas")
    keras.utils.set_random_seed(options.seed)
    with strategy.scope():  # variables made in here exist once per device
        model = byte_model(options.hidden)
        model.compile(
            optimizer=keras.optimizers.Adam(options.lr),
            loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        )
    inputs, targets = sequences(options.seq_len, options.steps * options.batch)
    data = tf.data.Dataset.from_tensor_slices((inputs, targets)).batch(options.batch)
    begin = time.perf_counter()
    history = model.fit(data, epochs=1, verbose=0)  # pyright: ignore[reportArgumentType] - 0 is allowed
    seconds = time.perf_counter() - begin
    print(f"{replicas} replicas, {options.steps} steps in {seconds:.1f} s")
    print(f"mean training loss {history.history['loss'][-1]:.4f}")


if __name__ == "__main__":
    main(OPTIONS)
