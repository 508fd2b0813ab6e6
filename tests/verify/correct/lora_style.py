"""In the style of PEFT's quick start: adapters on a frozen model, with Accelerate."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from peft import LoraConfig, get_peft_model
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

accelerator = Accelerator(cpu=True)
set_seed(12)
config = LlamaConfig(
    vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2
)
adapters = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["q_proj", "v_proj"])
model = get_peft_model(LlamaForCausalLM(config), adapters)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
loader = DataLoader(torch.randint(0, 64, (128, 16)), batch_size=8, shuffle=True)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
for _ in range(4):
    for words in loader:
        loss = model(input_ids=words, labels=words).loss
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
accelerator.end_training()
