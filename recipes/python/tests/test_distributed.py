"""Two processes with DistributedDataParallel on plans, against one process with twice the batch: `python test_distributed.py MEMLET` with a
`memlet` binary. Needs PyTorch with gloo, and a C compiler."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from memlet import torch_backend  # noqa: E402

PROCESSES, STEPS, BATCH, WIDTH = 2, 20, 16, 384


class Net(torch.nn.Module):
    """Four layers of 0.6 MB each in f32, so that gradients come in several buckets of 1 MiB."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.norm = torch.nn.LayerNorm(WIDTH)

    def forward(self, x):
        for layer in self.layers:
            x = x + torch.nn.functional.gelu(layer(x))
        return self.norm(x)


def trained(module, model, dtype, optimizer, rank=0, processes=1):
    """Parameters after the steps of one of so many processes, each with its part of the batch."""
    made = {
        "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9),
        "adamw": lambda p: torch.optim.AdamW(p, lr=1e-3),
    }[optimizer](module.parameters())
    share = BATCH // processes
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        x = torch.randn(BATCH, WIDTH, generator=generator, dtype=torch.float64).to(dtype)
        x, y = (whole[rank * share : (rank + 1) * share] for whole in (x, x.roll(1, 1).tanh()))
        loss = torch.nn.functional.mse_loss(model(x), y)
        made.zero_grad()
        loss.backward()
        made.step()
    return {name: value.detach().clone() for name, value in module.state_dict().items()}


def net(dtype):
    torch.manual_seed(1)
    return Net().to(dtype)


def compiled(model):
    return torch.compile(model, backend=torch_backend.backend, dynamic=False)


def work(out, dtype, optimizer, kind):
    """One of the processes: trains, and writes its parameters and in which order its backward partitions and DDP's hooks came."""
    dist.init_process_group("gloo")
    rank, events = dist.get_rank(), []
    module = net(getattr(torch, dtype))
    model = DistributedDataParallel(module, bucket_cap_mb=1)

    def hook(state, bucket):
        events.append("sent")
        sent = dist.all_reduce(bucket.buffer().div_(PROCESSES), async_op=True).get_future()
        return sent.then(lambda done: done.value()[0])

    model.register_comm_hook(None, hook)
    if kind == "compiled":
        ran = torch_backend._Partition.forward
        torch_backend._Partition.forward = lambda self, *tensors: (events.append("ran"), ran(self, *tensors))[1]
    state = trained(module, compiled(model) if kind == "compiled" else model, getattr(torch, dtype), optimizer, rank, PROCESSES)
    torch.save(state, Path(out) / f"{rank}.pt")
    partitions = [where for _, _, where, _ in torch_backend.REPORT]
    (Path(out) / f"{rank}.json").write_text(json.dumps({"events": events, "partitions": partitions, "table": torch_backend.table()}))
    dist.destroy_process_group()


class Distributed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.environment = {"MEMLET": torch_backend.Options.binary, "MEMLET_BUDGET": "0s", "MEMLET_TORCH_CACHE": cls.folder.name + "/cache",
                           "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}  # fmt: skip
        os.environ["MEMLET_TORCH_CACHE"] = cls.environment["MEMLET_TORCH_CACHE"]
        torch_backend.Options.budget = "0s"

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def distributed(self, dtype, optimizer, kind="compiled"):
        """What every process found, and in which order things came there."""
        with tempfile.TemporaryDirectory() as out:
            launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={PROCESSES}"]
            command = [*launch, __file__, "--worker", out, dtype, optimizer, kind]
            environment = {**os.environ, **self.environment}
            done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=1800)
            self.assertEqual(done.returncode, 0, done.stderr[-4000:])
            states = [torch.load(Path(out) / f"{rank}.pt") for rank in range(PROCESSES)]
            return states, [json.loads((Path(out) / f"{rank}.json").read_text()) for rank in range(PROCESSES)]

    def distance(self, one, other):
        """The largest difference of two sets of parameters, relative to the largest element of each tensor."""
        self.assertEqual(list(one), list(other))
        apart = lambda a, b: ((a.double() - b.double()).abs().max() / b.double().abs().max()).item()  # noqa: E731
        return max(apart(value, other[name]) for name, value in one.items())

    def hold(self, dtype, optimizer, close):
        """Trains in both ways; returns what the processes told."""
        kind = getattr(torch, dtype)
        states, told = self.distributed(dtype, optimizer)
        for name, value in states[0].items():
            self.assertTrue(torch.equal(value, states[1][name]), f"{name} differs between the processes")
        module, plain = net(kind), net(kind)
        torch._dynamo.reset()
        alone, eager = trained(module, compiled(module), kind, optimizer), trained(plain, plain, kind, optimizer)
        self.assertLess(self.distance(states[0], alone), close)
        self.assertLess(self.distance(states[0], eager), close)
        self.assertGreater(self.distance(eager, net(kind).state_dict()), 1e-2, "the parameters have hardly moved")
        return told

    # Adam divides a gradient by its own size, so where that is all rounding a step has its full length: f32 is held with SGD.

    def test_two_processes_train_as_one_with_twice_the_batch(self):
        self.hold("float64", "adamw", 1e-10)

    def test_gradients_in_f32_are_sent_while_others_are_computed(self):
        for process in self.hold("float32", "sgd", 1e-5):
            self.assertEqual(set(process["partitions"]), {"Memlet"}, process["table"])
            # A step's events end with its last bucket. In the first steps DDP still learns the order of gradients.
            last = process["events"][-process["events"][::-1].index("ran") - 1 :]
            before = process["events"][: -len(last)]
            self.assertEqual(last, ["ran"] + ["sent"] * (len(last) - 1))
            self.assertEqual(before[-1], "sent", "a bucket leaves before the last part of backward runs")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(*sys.argv[2:])
        sys.exit(0)
    if len(sys.argv) > 1:
        torch_backend.Options.binary = os.path.abspath(sys.argv.pop(1))
    unittest.main()
