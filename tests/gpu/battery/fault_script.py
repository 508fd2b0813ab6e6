"""A small training of 40 steps with one fault at step 10."""

import argparse
import sys
import time

import torch

parser = argparse.ArgumentParser()
parser.add_argument("--fault", default="none")
parser.add_argument("--device", default="cuda")
options = parser.parse_args()
on_gpu = options.device == "cuda"
device = torch.device(options.device)
torch.manual_seed(0)
dtype = torch.bfloat16 if on_gpu else torch.float32
model = torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.Tanh(), torch.nn.Linear(256, 8))
model.to(device, dtype)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
table = torch.nn.Embedding(100, 256).to(device, dtype)


def break_now():
    if options.fault == "oom":
        torch.empty(1 << 50, dtype=torch.uint8, device=device)
    elif options.fault == "hang":
        if on_gpu:
            torch.cuda._sleep(1 << 62)
            torch.cuda.synchronize()
        time.sleep(1000)
    elif options.fault == "device-assert":
        table(torch.tensor([1000], device=device)).sum().item()
    elif options.fault == "ecc":
        sys.exit("RuntimeError: CUDA error: uncorrectable ECC error encountered")
    elif options.fault == "illegal-address":
        if not on_gpu:
            import ctypes

            ctypes.string_at(0)
        import ctypes

        cuda = ctypes.CDLL("libcuda.so.1")
        cuda.cuMemsetD8_v2(ctypes.c_uint64(0xDEAD0000), 0, ctypes.c_size_t(1 << 20))
        torch.cuda.synchronize()
        (torch.ones(10, device=device) + 1).sum().item()
        raise SystemExit("RuntimeError: CUDA error: an illegal memory access was encountered")


for step in range(1, 41):
    x = torch.randn(64, 256, device=device, dtype=dtype)
    loss = model(x).square().mean()
    if options.fault == "nan" and step == 10:
        loss = loss * float("nan")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(0.02 if options.fault != "none" else 0.2)
    if step == 10:
        break_now()
