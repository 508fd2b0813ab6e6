"""In the style of Accelerate's nlp_example: accumulate(), warm-up, evaluation in each epoch."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import BertConfig, BertForSequenceClassification, get_scheduler

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
set_seed(42)
rows = [
    {
        "input_ids": torch.randint(5, 90, (int(n),)),
        "labels": torch.tensor(int(n) % 2),
    }
    for n in torch.randint(6, 24, (192,))
]


def collate(items):
    ids = torch.nn.utils.rnn.pad_sequence([one["input_ids"] for one in items], batch_first=True)
    labels = torch.stack([one["labels"] for one in items])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


train = DataLoader(rows[:160], shuffle=True, collate_fn=collate, batch_size=8, drop_last=True)
evaluation = DataLoader(rows[160:], shuffle=False, collate_fn=collate, batch_size=16)
config = BertConfig(
    vocab_size=90, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64
)
model = BertForSequenceClassification(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
schedule = get_scheduler(
    "linear", optimizer, num_warmup_steps=100, num_training_steps=(len(train) * 3) // 2
)
model, optimizer, train, evaluation, schedule = accelerator.prepare(
    model, optimizer, train, evaluation, schedule
)
for _ in range(3):
    model.train()
    for batch in train:
        with accelerator.accumulate(model):
            loss = model(**batch).loss
            accelerator.backward(loss)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    for batch in evaluation:
        with torch.no_grad():
            predictions = model(**batch).logits.argmax(-1)
        accelerator.gather_for_metrics((predictions, batch["labels"]))
accelerator.end_training()
