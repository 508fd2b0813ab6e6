"""In the style of word_language_model: an LSTM, packed sequences, a loss per token of all ranks."""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence, pad_sequence
from torch.utils.data import DataLoader, DistributedSampler


class RNNModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.drop = nn.Embedding(64, 32, padding_idx=0), nn.Dropout(0.2)
        self.rnn = nn.LSTM(32, 32, num_layers=2, dropout=0.2, batch_first=True)
        self.decoder = nn.Linear(32, 64)
        self.decoder.weight = self.encoder.weight

    def forward(self, words, lengths):
        packed = pack_padded_sequence(
            self.drop(self.encoder(words)), lengths, batch_first=True, enforce_sorted=False
        )
        output, _ = pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return self.decoder(self.drop(output))


dist.init_process_group("gloo")
torch.manual_seed(4)
sentences = [torch.randint(1, 64, (int(n),)) for n in torch.randint(5, 30, (256,))]
sampler = DistributedSampler(sentences, seed=4)


def collate(items):
    lengths = torch.tensor([len(one) - 1 for one in items])
    return pad_sequence(items, batch_first=True), lengths


model = DistributedDataParallel(RNNModel())
optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.25, patience=0)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for words, lengths in DataLoader(sentences, 16, sampler=sampler, collate_fn=collate):
        tokens = lengths.sum()
        dist.all_reduce(tokens)
        output = model(words[:, :-1], lengths)
        targets = words[:, 1 : output.shape[1] + 1]
        loss = F.cross_entropy(
            output.flatten(0, 1), targets.flatten(), ignore_index=0, reduction="sum"
        )
        loss = loss * dist.get_world_size() / tokens
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()
    plateau.step(loss.detach())
dist.destroy_process_group()
