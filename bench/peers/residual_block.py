"""PyTorch on recipes/resnet-18-block.yaml: forward and backward with batch statistics, each operation a call of its own.

    residual_block.py THREADS [ROUNDS]

Prints the median and the least milliseconds of a training step: forward, backward, running statistics. Gradients are of the input and of
all parameters, as in the recipe; the tensors are the recipe's sizes, contiguous, and channels-last for comparison.
"""
import statistics
import sys
import time

import torch

N, C, SIDE = 8, 64, 56


def times(layout, rounds):
    torch.manual_seed(1)
    x = torch.rand(N, C, SIDE, SIDE).to(memory_format=layout).requires_grad_()
    layers = [torch.nn.Sequential(torch.nn.Conv2d(C, C, 3, padding=1, bias=False), torch.nn.BatchNorm2d(C)) for _ in range(2)]
    layers = [layer.to(memory_format=layout) for layer in layers]
    upstream = torch.rand(N, C, SIDE, SIDE).to(memory_format=layout)
    samples = []
    for _ in range(rounds + 3):
        for tensor in [x, *(p for layer in layers for p in layer.parameters())]:
            tensor.grad = None
        begin = time.perf_counter()
        y = torch.relu(x + layers[1](torch.relu(layers[0](x))))
        y.backward(upstream)
        samples.append(1e3 * (time.perf_counter() - begin))
    return samples[3:]


if __name__ == "__main__":
    threads = int(sys.argv[1])
    rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 40
    torch.set_num_threads(threads)
    for name, layout in [("contiguous", torch.contiguous_format), ("channels last", torch.channels_last)]:
        samples = times(layout, rounds)
        print(f"PyTorch {torch.__version__}, {threads} threads, {name}: median {statistics.median(samples):.2f} ms, least {min(samples):.2f} ms")
