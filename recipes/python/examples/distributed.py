"""Trains a module on several processes: DistributedDataParallel of PyTorch, whose forward and backward run on plans of Memlet.

    torchrun --nproc-per-node 2 recipes/python/examples/distributed.py --steps 20

Each process takes its own part of every batch. DDP averages the gradients over processes (with gloo here), so all of them hold the same
parameters, those that one process with the whole batch would have.
"""

import argparse

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel


class Perceptron(torch.nn.Module):
    """A class of its own: PyTorch 2.15 compiles nothing of a bare ``nn.Sequential`` in DDP (findings/torch-compile-and-ddp.sh)."""

    def __init__(self, width, layers):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(width, width) for _ in range(layers))

    def forward(self, x):
        for layer in self.layers:
            x = torch.nn.functional.gelu(layer(x))
        return x


def batch(step, size, width):
    """The whole batch of a step, equal in all processes."""
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(size, width, generator=generator)
    return x, x.roll(1, 1).tanh()


def main():
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--steps", type=int, default=20)
    arguments.add_argument("--batch", type=int, default=64, help="samples in a step, of all processes together")
    arguments.add_argument("--width", type=int, default=512)
    arguments.add_argument("--layers", type=int, default=6)
    arguments.add_argument("--backend", default="memlet", help="of torch.compile; eager for none")
    arguments = arguments.parse_args()

    dist.init_process_group("gloo")
    rank, processes = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    # Buckets of 1 MiB: a graph ends where DDP's bucket does, so its gradients are sent while those of earlier layers are computed.
    model = DistributedDataParallel(Perceptron(arguments.width, arguments.layers), bucket_cap_mb=1)
    step_model = model if arguments.backend == "eager" else torch.compile(model, backend=arguments.backend, dynamic=False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    share = arguments.batch // processes
    for step in range(arguments.steps):
        x, y = (whole[rank * share : (rank + 1) * share] for whole in batch(step, arguments.batch, arguments.width))
        loss = torch.nn.functional.mse_loss(step_model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        # Each process has the loss of its own samples.
        mean = loss.detach() / processes
        dist.all_reduce(mean)
        if rank == 0 and (step % 5 == 0 or step == arguments.steps - 1):
            print(f"step {step}: loss {mean.item():.5f}", flush=True)
    if rank == 0 and arguments.backend == "memlet":
        import memlet.torch_backend

        print(memlet.torch_backend.table())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
