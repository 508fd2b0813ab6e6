"""A word-level LSTM in the style of the public language-model example: batchify, bptt, manual SGD scale."""

import argparse
import os

import torch
import torch.nn as nn

parser = argparse.ArgumentParser()
parser.add_argument("--emsize", type=int, default=128)
parser.add_argument("--nhid", type=int, default=128)
parser.add_argument("--nlayers", type=int, default=2)
parser.add_argument("--batch_size", type=int, default=10, metavar="N")
parser.add_argument("--bptt", type=int, default=20)
args = parser.parse_args()


class RNNModel(nn.Module):
    def __init__(self, ntoken):
        super().__init__()
        self.drop = nn.Dropout(0.2)
        self.encoder = nn.Embedding(ntoken, args.emsize)
        self.rnn = nn.LSTM(args.emsize, args.nhid, args.nlayers, dropout=0.2)
        self.decoder = nn.Linear(args.nhid, ntoken)

    def forward(self, x, hidden):
        out, hidden = self.rnn(self.drop(self.encoder(x)), hidden)
        return nn.functional.log_softmax(self.decoder(self.drop(out)).view(-1, 2000), dim=1), hidden


def batchify(data, bsz):
    nbatch = data.size(0) // bsz
    return data.narrow(0, 0, nbatch * bsz).view(bsz, -1).t().contiguous()


train_data = batchify(torch.randint(0, 2000, (20000,)), args.batch_size)
model = RNNModel(2000)
if int(os.environ.get("WORLD_SIZE", 1)) > 1:
    torch.distributed.init_process_group("gloo")
    model = nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
hidden = tuple(torch.zeros(args.nlayers, args.batch_size, args.nhid) for _ in range(2))
for i in range(0, train_data.size(0) - 1 - args.bptt, args.bptt):
    data, targets = train_data[i : i + args.bptt], train_data[i + 1 : i + 1 + args.bptt].view(-1)
    optimizer.zero_grad()
    hidden = tuple(h.detach() for h in hidden)
    output, hidden = model(data, hidden)
    loss = nn.functional.nll_loss(output, targets)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 0.25)
    optimizer.step()
