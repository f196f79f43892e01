"""PyTorch modules on plans, against PyTorch in f64: `python test_torch.py MEMLET` with a `memlet` binary. Needs PyTorch and `cc`."""

import copy
import os
import sys
import tempfile
import unittest

import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [os.path.join(HERE, ".."), os.path.join(HERE, "..", "..", "..", "bench", "peers")]
import memlet  # noqa: E402
import torch_models  # noqa: E402
from memlet import masks, plans, torch_backend  # noqa: E402
from models import Encoder, Fire, Residual, perceptron  # noqa: E402

#: Relative to the largest value: sums of some hundred terms in f32, in another order than PyTorch's.
CLOSE = 2e-5


class Of(torch.nn.Module):
    """A module of a function and parameters of given shapes."""

    def __init__(self, function, *shapes):
        super().__init__()
        self.function = function
        self.p = torch.nn.ParameterList(torch.nn.Parameter(torch.randn(*shape) * 0.5) for shape in shapes)

    def forward(self, *inputs):
        return self.function(*inputs, *self.p)


def pointwise(x, w):
    y = x + w
    functions = [
        torch.exp, torch.abs, torch.sin, torch.cos, torch.erf, torch.tanh, torch.sigmoid, torch.relu, F.silu, F.gelu, torch.square,
        F.softplus, F.hardtanh, F.leaky_relu, lambda v: F.gelu(v, approximate="tanh"), lambda v: torch.log(v.abs() + 0.5),
        lambda v: torch.rsqrt(v * v + 1), lambda v: torch.sqrt(v * v + 1), lambda v: 1 / (v.abs() + 1), lambda v: torch.clamp(v, -0.3, 0.4),
        lambda v: torch.maximum(v, w) - torch.minimum(v, x), lambda v: torch.where(v > 0.1, v, 2 * x), lambda v: 3 - 2 * v,
        lambda v: (v.abs() + 0.1) ** 1.5, lambda v: v.masked_fill(x < 0, 0.25),
        lambda v: v * ((x > 0) & (v != 0)) + v * ~((x <= 0) | (v > 1)),
        torch.atan, lambda v: torch.asin(0.9 * torch.tanh(v)), lambda v: torch.acos(0.9 * torch.tanh(v)), lambda v: torch.tan(torch.tanh(v)),
        lambda v: torch.log2(v.abs() + 0.5) + torch.log10(v.abs() + 0.5), lambda v: v * (torch.ceil(x) + torch.trunc(3 * x)),
    ]  # fmt: skip
    return torch.stack([f(y) for f in functions]).sum(0)


def reductions(x, w):
    y = x * w
    return (y.sum(1, keepdim=True) + y.mean(0) + x.amax(2, keepdim=True) - x.amin((0, 1)) + torch.logsumexp(y, 2, keepdim=True)
            + torch.softmax(y, 1) + torch.log_softmax(y, 2) + y.var(2, keepdim=True) + y.expand(2, *y.shape).sum(0))  # fmt: skip


def parts(x, w):
    q, k, v = (x @ w).split(8, 2)
    joined = torch.cat([q[:, 1:], k[:, :2], F.pad(v[:, 2:4], (0, 0, 0, 1))], 1)
    return joined * q[:, :1] + torch.stack([v[:, 0], k[:, -1]], 1).sum(1, keepdim=True)


def attended(q, k, v, mask=None, causal=False):
    return F.scaled_dot_product_attention(q, k, v, mask, is_causal=causal)


class Programs(unittest.TestCase):
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

    def close(self, right, found, close=CLOSE):
        self.assertEqual(len(right), len(found))
        # A gradient that is 0 but for rounding is compared with the others.
        most = max(one.abs().max().item() for one in right if one is not None)
        for one, other in zip(right, found, strict=True):
            self.assertEqual(one is None, other is None)
            if one is not None:
                self.assertEqual(one.shape, other.shape)
                self.assertFalse(other.isnan().any())
                self.assertLess((one - other).abs().max().item(), close * max(one.abs().max().item(), 1e-2 * most), tuple(one.shape))

    def results(self, module, call, inputs, seed=5):
        torch.manual_seed(seed)
        module.zero_grad()
        own = [x.clone().requires_grad_(True) if x.is_floating_point() else x for x in inputs]
        y = call(*own)
        weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape) if y.dim() else 1
        (y * weights).sum().backward()
        own = [x for x in own if x.is_floating_point()]
        return [y.detach(), *(None if t.grad is None else t.grad.clone() for t in (*own, *module.parameters()))]

    def in_double(self, module, *inputs):
        double = copy.deepcopy(module).double()
        return double, [x.double() if x.is_floating_point() else x for x in inputs]

    def hold(self, module, *inputs, whole=True, double=True):
        """A module trains as PyTorch has it in f64; with ``whole`` nothing stays with PyTorch."""
        names = list(module.state_dict())
        compiled = torch.compile(module, backend=torch_backend.backend, dynamic=False)
        found = self.results(module, compiled, inputs)
        exact, given = self.in_double(module, *inputs) if double else (module, inputs)
        self.close(self.results(exact, exact, given), found)
        self.assertEqual(names, list(module.state_dict()))
        if whole:
            self.assertEqual({where for _, _, where, _ in torch_backend.REPORT}, {"Memlet"}, torch_backend.table())
        return compiled

    def infer(self, module, *inputs, whole=True):
        module.eval()
        compiled = torch.compile(module, backend=torch_backend.backend, dynamic=False)
        exact, given = self.in_double(module, *inputs)
        with torch.no_grad():
            self.close([exact(*given)], [compiled(*inputs)])
        if whole:
            self.assertEqual({where for _, _, where, _ in torch_backend.REPORT}, {"Memlet"}, torch_backend.table())

    def test_perceptrons_train_and_infer(self):
        module, x = perceptron(), torch.randn(12, 20)
        compiled = self.hold(module, x)
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

    def test_functions_point_by_point(self):
        self.hold(Of(pointwise, (5, 6)), torch.randn(5, 6))

    def test_reductions(self):
        self.hold(Of(reductions, (3, 4, 5)), torch.randn(3, 4, 5))

    def test_constants_of_graphs(self):
        def constants(x, w):
            y = (x @ w) * torch.tensor([0.5, 2.0, -1.0, 3.0])
            return torch.gather(y, 1, torch.tensor([[0, 2], [1, 1], [3, 0]])).tanh()

        self.hold(Of(constants, (5, 4)), torch.randn(3, 5), whole=False)

    def test_products_with_expanded_factors(self):
        def expanded(x, w, b):
            # The gradients of these sums and means are expanded, and products read them.
            means = (x @ w).mean(1) * x.sum(1)
            rows = torch.addmm(b, x.sum(0, keepdim=True).expand(6, 8), w)
            columns = torch.addmm(b, x, w.mean(1, keepdim=True).expand(8, 9))
            return means.sum() + (x @ w).sum() + rows.tanh().sum() + columns.pow(2).sum()

        self.hold(Of(expanded, (8, 9), (9,)), torch.randn(6, 8))

    def test_parts_are_read_and_joined(self):
        self.hold(Of(parts, (6, 24)), torch.randn(2, 5, 6))

    def test_rows_by_number(self):
        ids = torch.randint(0, 11, (3, 7))
        places = torch.arange(7)
        function = lambda ids, e, p, w: (F.embedding(ids, e, padding_idx=2) + F.embedding(places, p)) @ w  # noqa: E731
        self.hold(Of(function, (11, 6), (9, 6), (6, 4)), ids)

    def test_losses(self):
        labels = torch.randint(0, 7, (9,))
        labels[4] = -100
        for reduction in ("mean", "sum", "none"):
            torch._dynamo.reset()
            self.hold(Of(lambda x, t, w: F.cross_entropy(x @ w, t, reduction=reduction), (5, 7)), torch.randn(9, 5), labels)
        torch._dynamo.reset()
        self.hold(Of(lambda x, t, w: F.nll_loss(torch.log_softmax(x @ w, 1), t, ignore_index=3), (5, 7)), torch.randn(9, 5), labels.clamp(0))

    def test_attention_with_masks(self):
        q, k, v = (torch.randn(2, 2, n, 8) for n in (6, 6, 6))
        keeps = torch.rand(2, 1, 1, 6) > 0.3
        keeps[0, 0, 0, 0] = True
        keeps[1] = False
        self.hold(Of(lambda q, k, v: attended(q, k, v, causal=True)), q, k, v)
        torch._dynamo.reset()
        # All keys of the second sample are hidden: its results are 0.
        self.hold(Of(lambda q, k, v, m: attended(q, k, v, m)), q, k, v, keeps)
        torch._dynamo.reset()
        self.hold(Of(lambda q, k, v, m: attended(q, k, v, m)), q, k, v, torch.randn(2, 1, 6, 6))

    def test_masks_in_graphs_are_those_of_plans(self):
        # By hand: the reference of Philox 4x32-10 in `sdfg/src/philox.rs` has the same vectors.
        module = Of(lambda x, w: F.dropout(x @ w, 0.25), (16, 16))
        x = torch.randn(8, 16)
        torch.manual_seed(5)
        seed = int(torch.ops.memlet.seed())
        expected = masks.mask(seed, (8, 16), 0.25, 0, 0)
        found = self.results(module, torch.compile(module, backend=torch_backend.backend), [x])
        product = x @ module.p[0]
        self.close([product * expected], [found[0].detach()])
        self.assertTrue(0.1 < (expected == 0).double().mean() < 0.4)
        weights = torch.linspace(-1, 1, product.numel()).view(product.shape)
        self.close([x.T @ (weights * expected)], [found[-1]])

    def test_encoders_train_with_equal_layers_sharing_plans(self):
        words, labels = torch.randint(0, 17, (2, 6)), torch.randint(0, 17, (2, 6))
        keeps = torch.ones(2, 6)
        keeps[0, 4:] = 0
        self.hold(Encoder(layers=3), words, labels, keeps)
        # The first layer makes what all need of the mask; the others are equal.
        plans = [why for graph, _, _, why in torch_backend.REPORT if graph.startswith("forward")]
        self.assertEqual((len(plans), len(set(plans))), (4, 3), torch_backend.table())

    def test_causal_encoders_train_with_dropout(self):
        # Equal seeds have equal masks, others have others.
        module = Encoder(layers=2, rate=0.2, causal=True)
        words, labels = torch.randint(0, 17, (2, 6)), torch.randint(0, 17, (2, 6))
        compiled = torch.compile(module, backend=torch_backend.backend, dynamic=False)
        once, again, other = (self.results(module, compiled, (words, labels), seed) for seed in (5, 5, 6))
        self.close(once, again, 1e-6)
        self.assertNotEqual(once[0].item(), other[0].item())
        self.assertEqual({where for _, _, where, _ in torch_backend.REPORT}, {"Memlet"}, torch_backend.table())
        # The gradient is that of the loss with these masks: along a direction, by a difference.
        with torch.no_grad():
            parameter, direction = module.layers[0].up.weight, torch.randn_like(module.layers[0].up.weight)
            gradient = once[1 + [id(p) for p in module.parameters()].index(id(parameter))]
            losses = []
            for sign in (1, -2):
                parameter += sign * 1e-2 * direction
                torch.manual_seed(5)
                with torch.enable_grad():
                    losses.append(compiled(words, labels).item())
        slope = (losses[0] - losses[1]) / 2e-2
        self.assertAlmostEqual(slope, (gradient * direction).sum().item(), delta=2e-2 * max(1, abs(slope)))

    def test_what_backward_can_make_of_saved_values_is_not_saved(self):
        # Of a GELU its argument, of dropped-out probabilities these: 12 rows of 32, 12 x 12 in 2 heads, which none has twice.
        class Block(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.up, self.down = torch.nn.Linear(8, 32), torch.nn.Linear(32, 8)

            def forward(self, x):
                heads = x.view(12, 2, 4).transpose(0, 1)
                probabilities = F.dropout(torch.softmax(heads @ heads.transpose(1, 2), -1), 0.25)
                y = (probabilities @ heads).transpose(0, 1).reshape(12, 8)
                return self.down(F.gelu(self.up(y)))

        module, x, saved = Block(), torch.randn(12, 8, requires_grad=True), []
        compiled = torch.compile(module, backend=torch_backend.backend, dynamic=False)
        with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t.numel()) or t, lambda t: t):
            y = compiled(x)
        self.assertEqual((saved.count(12 * 32), saved.count(2 * 12 * 12)), (1, 1), saved)
        y.sum().backward()
        self.assertFalse(x.grad.isnan().any())

    def test_backward_lets_saved_tensors_go(self):
        # 8 layers of 2 MB, saved for backward, whose gradients have 16 KB each.
        module = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.Tanh()) for _ in range(8)))
        x = torch.randn(8192, 64)
        compiled = torch.compile(module, backend=torch_backend.backend, dynamic=False)

        def step():
            module.zero_grad(set_to_none=True)
            compiled(x).sum().backward()

        step()
        most = torch_models.most_bytes(step)
        # Two more than what is saved: what passes between layers, forward or backward.
        self.assertLess(most, (8 + 3) * x.nbytes)
        del compiled

    def test_plans_change_with_what_memory_is_worth(self):
        module, x = torch.nn.Sequential(torch.nn.Linear(64, 96), torch.nn.Tanh(), torch.nn.Dropout(0.25), torch.nn.Linear(96, 8)), torch.randn(32, 64)
        compiled = torch.compile(module, backend=torch_backend.backend, dynamic=False)
        once = self.results(module, compiled, [x])
        for plan in plans._PLANS.values():
            self.assertTrue(not plan.users or plan.finalist is plan.finalists[0], torch_backend.choice())
        used = [plan for plan in plans._PLANS.values() if plan.users]
        self.assertEqual(plans.workspace_bytes(), max(plan.step.workspace_bytes for plan in used))
        self.assertEqual([plan.step.workspace_bytes for plan in used], [plan.finalist["workspace_bytes"] for plan in used])
        # Another plan of the same recipe, as if it needed less and took longer.
        for plan in used:
            files = sorted((plan._folder / "plan" / "plans").glob("*.json"))
            other = next(file for file in files if file.name != os.path.basename(plan.finalist["file"]))
            about = {"file": f"plans/{other.name}", "plan": other.stem, "step_ms": 2 * plan.finalist["step_ms"], "workspace_bytes": 64}
            plan.finalists = [*plan.finalists[:1], {**plan.finalist, **about}]
        for slack, number in ((3.0, 1), (0.5, 0)):
            with torch_backend.options(memory_slack=slack):
                self.assertEqual(plans.choose(), {})
            self.assertTrue(all(plan.finalist is plan.finalists[number] for plan in used), torch_backend.choice())
            self.close(once, self.results(module, compiled, [x]), 1e-5)
            self.assertEqual(plans.workspace_bytes(), max(plan.step.workspace_bytes for plan in used))
        # What cannot be built is left out.
        for plan in used:
            plan.finalists[1]["file"] = "plans/none.json"
        with torch_backend.options(memory_slack=3.0):
            self.assertEqual(set(plans.choose()), {plan.name for plan in used})
        self.close(once, self.results(module, compiled, [x]), 1e-5)

    def test_dropout_can_stay_with_pytorch_and_keep_its_seeds(self):
        with torch_backend.options(dropout="pytorch"):
            module = Of(lambda x, w, v: F.dropout(torch.tanh(x @ w), 0.3) @ v, (6, 8), (8, 5))
            self.hold(module, torch.randn(4, 6), whole=False, double=False)
        told = torch_backend.table()
        self.assertIn("Memlet", told)
        self.assertRegex(told, "PyTorch +no recipe for aten.(native_dropout|bernoulli)")

    def test_convolutional_networks_infer(self):
        fire = Fire()
        self.infer(fire, torch.randn(2, 3, 15, 15))
        torch._dynamo.reset()
        residual = Residual()
        for norm in (residual.first, residual.second):
            norm.running_mean.normal_()
            norm.running_var.uniform_(0.5, 2)
        self.infer(residual, torch.randn(2, 4, 8, 8))

    def test_deep_networks_are_checked_with_finite_numbers(self):
        # Were kernels drawn without regard to their size, each of these layers would multiply magnitudes by thirty.
        blocks = [torch.nn.Sequential(torch.nn.Conv2d(32, 32, 3, padding=1, bias=False), torch.nn.BatchNorm2d(32), torch.nn.ReLU()) for _ in range(28)]
        self.infer(torch.nn.Sequential(*blocks), torch.randn(1, 32, 5, 5))
        self.assertNotIn("PyTorch", torch_backend.table())

    def test_convolutional_networks_train(self):
        nn = torch.nn
        x = torch.randn(2, 3, 19, 17)
        # Strides, windows of one place with strides, maxima, groups, and transposed convolutions.
        stem = nn.Sequential(nn.Conv2d(3, 8, 7, 2, 3), nn.ReLU(), nn.MaxPool2d(3, 2, 1), nn.Conv2d(8, 12, 1, 2), nn.Tanh())
        self.hold(stem, x)
        torch._dynamo.reset()
        apart = nn.Sequential(nn.Conv2d(3, 6, 3, 2, 1, groups=3), nn.Tanh(), nn.Conv2d(6, 6, 3, padding=2, dilation=2, groups=3), nn.Tanh())
        self.hold(apart, x)
        torch._dynamo.reset()
        up = nn.Sequential(nn.ConvTranspose2d(3, 6, 4, 2, 1), nn.Tanh(), nn.ConvTranspose2d(6, 4, 1, 2, output_padding=1, groups=2), nn.Tanh(),
                           nn.ConvTranspose2d(4, 2, 3, padding=1, dilation=2), nn.Tanh())  # fmt: skip
        self.hold(up, torch.randn(2, 3, 5, 4))
        torch._dynamo.reset()
        # Images that have become a single place.
        self.hold(nn.Sequential(nn.Conv2d(4, 6, 3, 2, 1), nn.Tanh(), nn.Conv2d(6, 5, 3, padding=1), nn.Tanh()), torch.randn(2, 4, 2, 1))

    def test_the_first_of_equal_maxima_has_the_gradient(self):
        class Pooled(torch.nn.Module):
            def forward(self, x):
                y = F.max_pool2d(torch.tanh(x), 3, 2, 1, ceil_mode=True)
                return torch.tanh(F.max_pool2d(y, (2, 3), (1, 2)))

        self.hold(Pooled(), torch.randn(2, 3, 12, 11).round())

    def test_residual_blocks_train(self):
        module = Residual()
        before = copy.deepcopy(module)
        x = torch.randn(2, 4, 8, 8)
        self.hold(module, x, whole=False)
        before.train()(x)
        for one, other in zip(before.buffers(), module.buffers(), strict=True):
            self.assertLess((one - other).abs().max().item(), 1e-5)


if __name__ == "__main__":
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        torch_backend.Options.binary = sys.argv.pop(1)
    unittest.main()
