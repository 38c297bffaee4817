"""story.py MIB SECONDS: PyTorch in a grant of so many MiB, or natively with 0: what it sees, its error beyond that, and how fast it goes on."""

import sys
import time

import torch

mib, seconds = int(sys.argv[1]), float(sys.argv[2])
total = torch.cuda.get_device_properties(0).total_memory
if mib:
    assert total == mib << 20, f"the GPU has {total >> 20} MiB"
    held = []
    try:
        while True:
            held.append(torch.empty(20 << 20, dtype=torch.uint8, device="cuda"))
    except torch.cuda.OutOfMemoryError as error:
        had = len(held) * 20
        assert had <= mib, f"it had {had} MiB"
        print(f"total {total >> 20} MiB, had {had} MiB, then {type(error).__name__}")
    held.clear()
    torch.cuda.empty_cache()


def rate(step):
    for _ in range(5):
        step()
    torch.cuda.synchronize()
    start, done = time.monotonic(), 0
    while time.monotonic() < start + seconds:
        for _ in range(20):
            step()
        torch.cuda.synchronize()
        done += 20
    return done / (time.monotonic() - start)


a, b = (torch.randn(2048, 2048, device="cuda") for _ in range(2))
print(f"products {rate(lambda: a @ b):.1f} a second")

model = torch.nn.Sequential(torch.nn.Linear(1024, 4096), torch.nn.ReLU(), torch.nn.Linear(4096, 10)).cuda()
optimizer = torch.optim.Adam(model.parameters())
inputs, targets = torch.randn(256, 1024, device="cuda"), torch.randint(10, (256,), device="cuda")


def step():
    optimizer.zero_grad(set_to_none=True)
    torch.nn.functional.cross_entropy(model(inputs), targets).backward()
    optimizer.step()


print(f"training {rate(step):.1f} steps a second")

graph, out = torch.cuda.CUDAGraph(), None
with torch.cuda.graph(graph):
    out = a @ b
graph.replay()
torch.cuda.synchronize()
print("a graph", "right" if torch.equal(out, a @ b) else "wrong")
