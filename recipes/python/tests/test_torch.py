"""PyTorch modules on plans, against PyTorch: `python test_torch.py MEMLET` with a `memlet` binary. Needs PyTorch and a C compiler."""

import os
import sys
import tempfile
import unittest

import torch

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
import memlet  # noqa: E402
from memlet import torch_backend  # noqa: E402

CLOSE = 2e-5


class Layer(torch.nn.Module):
    """A transformer layer."""

    def __init__(self, i=32, heads=2, rate=0.0):
        super().__init__()
        self.heads, self.rate = heads, rate
        self.q, self.k, self.v, self.o = (torch.nn.Linear(i, i) for _ in range(4))
        self.first, self.second = torch.nn.LayerNorm(i), torch.nn.LayerNorm(i)
        self.up, self.down = torch.nn.Linear(i, 4 * i), torch.nn.Linear(4 * i, i)

    def forward(self, x):
        b, j, i = x.shape
        q, k, v = (f(x).view(b, j, self.heads, i // self.heads).transpose(1, 2) for f in (self.q, self.k, self.v))
        attention = torch.softmax(q @ k.transpose(-1, -2) * (i // self.heads) ** -0.5, -1)
        attention = torch.nn.functional.dropout(attention, self.rate, self.training)
        x = self.first(x + self.o((attention @ v).transpose(1, 2).reshape(b, j, i)))
        return self.second(x + self.down(torch.nn.functional.gelu(self.up(x))))


def perceptron():
    layers = [torch.nn.Linear(20, 33), torch.nn.ReLU(), torch.nn.Linear(33, 16), torch.nn.Tanh(), torch.nn.Linear(16, 4)]
    return torch.nn.Sequential(*layers)


class Modules(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        os.environ["MEMLET_TORCH_CACHE"] = cls.folder.name
        torch_backend.Options.budget = "1s"
        torch_backend.Options.threads = 2

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def setUp(self):
        torch.manual_seed(3)
        torch._dynamo.reset()
        torch_backend.REPORT.clear()

    def close(self, right, found):
        for one, other in zip(right, found, strict=True):
            self.assertEqual((one.shape, one.dtype), (other.shape, other.dtype))
            self.assertLess((one - other).abs().max().item(), CLOSE * max(one.abs().max().item(), 1e-2))

    def results(self, module, call, x, seed):
        torch.manual_seed(seed)
        for parameter in module.parameters():
            parameter.grad = None
        x = x.clone().requires_grad_(True)
        y = call(x)
        (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum().backward()
        return [y.detach(), x.grad, *[p.grad.clone() for p in module.parameters()]]

    def hold(self, module, x, seed=5):
        names = list(module.state_dict())
        compiled = torch.compile(module, backend=torch_backend.backend, dynamic=False)
        right, found = self.results(module, module, x, seed), self.results(module, compiled, x, seed)
        self.close(right, found)
        self.assertEqual(names, list(module.state_dict()))
        return compiled

    def test_perceptrons_train_and_infer(self):
        module, x = perceptron(), torch.randn(12, 20)
        compiled = self.hold(module, x)
        self.assertTrue(all(where == "Memlet" for _, _, where, _ in torch_backend.REPORT), torch_backend.table())
        with torch.no_grad():
            self.close([module(x)], [compiled(x)])
            # Another shape is compiled once more.
            self.close([module(x[:5])], [compiled(x[:5])])

    def test_some_parameters_can_be_frozen(self):
        module = perceptron()
        module[0].weight.requires_grad_(False)
        module[0].bias.requires_grad_(False)
        compiled, x = memlet.compile(module, (torch.randn(12, 20),)), torch.randn(12, 20)
        module(x).sum().backward()
        right = [p.grad.clone() for p in module.parameters() if p.requires_grad]
        module.zero_grad()
        compiled(x).sum().backward()
        self.close(right, [p.grad for p in module.parameters() if p.requires_grad])
        self.assertIsNone(module[0].weight.grad)

    def test_transformer_layers_train(self):
        self.hold(Layer(), torch.randn(2, 12, 32))
        self.assertTrue(all(where == "Memlet" for _, _, where, _ in torch_backend.REPORT), torch_backend.table())

    def test_dropout_stays_with_pytorch_and_keeps_its_seeds(self):
        self.hold(Layer(rate=0.3), torch.randn(2, 12, 32))
        told = torch_backend.table()
        self.assertIn("Memlet", told)
        self.assertRegex(told, "PyTorch +(no recipe for aten.(native_dropout|rand|bernoulli|inductor)|torch.bool)")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        torch_backend.Options.binary = sys.argv.pop(1)
    unittest.main()
