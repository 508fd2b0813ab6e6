"""What public scripts would download, made here: text, pictures, a tokenizer, a small BERT, GLUE.

Hub names are satisfied by folders of that name in the working directory.
"""

from __future__ import annotations

import pickle
import random
import shutil
import struct
from pathlib import Path

SEED = 0
WORDS = ["the", "cat", "dog", "sees", "a", "house", "and", "runs", "to", "sleeps"]


def no_data(_work: Path, _root: Path) -> None:
    """The script makes its own."""


def some_text(words: int = 30_000) -> str:
    """Sentences of a few words, which a small model learns quickly."""
    pick = random.Random(SEED)
    return "\n".join(_sentence(pick) for _ in range(words // 8))


def _sentence(pick: random.Random) -> str:
    return " ".join(pick.choice(WORDS) for _ in range(8)).capitalize() + "."


def shakespeare(_work: Path, root: Path) -> None:
    """nanoGPT's data/shakespeare_char as its prepare.py leaves it, of our text."""
    import numpy as np

    text = some_text()
    letters = sorted(set(text))
    numbers = np.array([letters.index(one) for one in text], dtype=np.uint16)
    folder = root / "data" / "shakespeare_char"
    split = int(len(numbers) * 0.9)
    numbers[:split].tofile(folder / "train.bin")
    numbers[split:].tofile(folder / "val.bin")
    meta = {"vocab_size": len(letters), "itos": dict(enumerate(letters)), "stoi": {}}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))  # without it: GPT-2's 50,304 tokens


def input_text(work: Path, _root: Path) -> None:
    """The one text file that minGPT's chargpt reads."""
    (work / "input.txt").write_text("O God, O God!\n" + some_text())  # the letters of its prompt


def word_files(work: Path, _root: Path) -> None:
    """word_language_model's three files."""
    for name, words in (("train", 4000), ("valid", 800), ("test", 800)):
        (work / f"{name}.txt").write_text(some_text(words))


def digits(work: Path, _root: Path) -> None:
    """MNIST's files, where scripts in `work`/here look for them: ../data and ./data."""
    pick = random.Random(SEED)
    (work / "results").mkdir()  # as in vae's checkout
    for parent in (work.parent / "data", work / "data"):
        folder = parent / "MNIST" / "raw"
        folder.mkdir(parents=True, exist_ok=True)
        for name, count in (("train", 640), ("t10k", 128)):
            labels = bytes(pick.randrange(10) for _ in range(count))
            rows = (bytes([25 * label + 5] * 392 + [0] * 392) for label in labels)
            pictures = struct.pack(">IIII", 2051, count, 28, 28) + b"".join(rows)
            (folder / f"{name}-images-idx3-ubyte").write_bytes(pictures)
            (folder / f"{name}-labels-idx1-ubyte").write_bytes(
                struct.pack(">II", 2049, count) + labels
            )


def sine_waves(work: Path, _root: Path) -> None:
    """What time_sequence_prediction's generate_sine_wave.py saves."""
    import numpy as np
    import torch

    shifts = np.random.default_rng(SEED).integers(-80, 80, (12, 1))
    torch.save(np.sin((np.arange(100) + shifts) / 20.0), work / "traindata.pt")


def cpu_as_accelerator(work: Path, _root: Path) -> None:
    """A sitecustomize that lets scripts which count accelerators take the CPU for two."""
    (work / "shim").mkdir()
    (work / "shim" / "sitecustomize.py").write_text(
        "import torch\n"
        "torch.accelerator.is_available = lambda: True\n"
        "torch.accelerator.device_count = lambda: 2\n"
        "torch.accelerator.current_accelerator = lambda *_, **__: torch.device('cpu')\n"
    )


def text_and_model(work: Path, root: Path) -> None:
    """Text files, a tokenizer trained on them, a tiny GPT-2's configuration, a metric."""
    from transformers import GPT2Config

    for name, words in (("train", 20_000), ("valid", 2000)):
        (work / f"{name}.txt").write_text(some_text(words))
    tokenizer = _tokenizer(work / "tiny")
    GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=64,
        bos_token_id=2,
        eos_token_id=3,
    ).save_pretrained(work / "tiny")
    _metric(work, root, "accuracy")


def glue(work: Path, root: Path) -> None:
    """GLUE's MRPC in rows of ours, a BERT of one layer as bert-base-cased, the metric."""
    import torch
    from datasets import ClassLabel, Dataset
    from transformers import BertConfig, BertForSequenceClassification

    pick, folder = random.Random(SEED), work / "nyu-mll" / "glue"
    (folder / "mrpc").mkdir(parents=True)
    for split, count in (("train", 320), ("validation", 32), ("test", 32)):
        first = [_sentence(pick) for _ in range(count)]
        labels = [pick.randrange(2) for _ in range(count)]
        second = [one if same else "house house" for one, same in zip(first, labels, strict=True)]
        rows = {"sentence1": first, "sentence2": second, "label": labels, "idx": range(count)}
        rows = {name: list(column) for name, column in rows.items()}
        names = ClassLabel(names=["not_equivalent", "equivalent"])
        made = Dataset.from_dict(rows).cast_column("label", names)
        made.to_parquet(folder / "mrpc" / f"{split}.parquet")
    splits = "".join(
        f"  - split: {split}\n    path: mrpc/{split}.parquet\n"
        for split in ("train", "validation", "test")
    )
    (folder / "README.md").write_text(
        f"---\nconfigs:\n- config_name: mrpc\n  data_files:\n{splits}---\n"
    )
    tokenizer = _tokenizer(work / "bert-base-cased")
    torch.manual_seed(SEED)
    BertForSequenceClassification(
        BertConfig(
            vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=1,
            num_attention_heads=2, max_position_embeddings=128,
        )
    ).save_pretrained(work / "bert-base-cased")  # fmt: skip
    _metric(work, root, "glue")


def _tokenizer(folder: Path) -> object:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    inner = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    inner.train_from_iterator([some_text(2000)], trainers.WordLevelTrainer(special_tokens=special))
    inner.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]",
        sep_token="[SEP]", model_max_length=64,
    )  # fmt: skip
    made.save_pretrained(folder)
    return made


def _metric(work: Path, root: Path, name: str) -> None:
    """`evaluate` takes a metric from a folder of its name before it asks the hub."""
    shutil.copytree(root.parent / "huggingface__evaluate" / "metrics" / name, work / name)
