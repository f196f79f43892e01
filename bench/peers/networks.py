"""The convolutional networks of recipes/, layer by layer, for peers: as ONNX models, and as values that PyTorch computes in f64.

    networks.py --values [NAME…]         prints small versions' results, which recipes/tests/recipes/networks.rs holds its own against
    networks.py --onnx FOLDER [NAME…]    writes ONNX models with normalization folded into weights, as runtimes do

Layers and parameters stand in the order of the recipes, so that the k-th parameter here is the k-th one there.
"""
import sys

import numpy as np


class Layer:
    def __init__(self, op, inputs, shape, **options):
        self.op, self.inputs, self.shape, self.options = op, inputs, shape, options


class Net:
    """A graph of layers; shapes are (channels, rows, columns) of one image. `divisor` makes all channels fewer."""

    def __init__(self, name, side, divisor=1, normalized=False):
        self.name, self.divisor, self.normalized, self.layers = name, divisor, normalized, []
        self.x = self.add("input", [], (3, side, side))

    def add(self, op, inputs, shape, **options):
        self.layers.append(Layer(op, inputs, shape, **options))
        return len(self.layers) - 1

    def shape(self, at):
        return self.layers[at].shape

    def wide(self, channels):
        return max(1, channels // self.divisor)

    def convolution(self, x, out, window=1, stride=1, pad=None, relu=True, each=False):
        """Channels as in the whole network; `pad` keeps sizes unless it is given; `each` is a kernel for each channel."""
        c, h, w = self.shape(x)
        window = (window, window) if isinstance(window, int) else window
        pad = tuple((k - 1) // 2 for k in window) if pad is None else (pad, pad)
        out = c if each else self.wide(out)
        p, q = ((size + 2 * before - k) // stride + 1 for size, before, k in zip((h, w), pad, window))
        y = self.add("conv", [x], (out, p, q), window=window, stride=stride, pad=pad, groups=c if each else 1)
        return self.add("relu", [y], (out, p, q)) if relu else y

    def relu(self, x):
        return self.add("relu", [x], self.shape(x))

    def pooling(self, x, window=3, stride=2, pad=0, up=0, kind="max"):
        c, h, w = self.shape(x)
        p, q = ((size + 2 * pad + up - window) // stride + 1 for size in (h, w))
        return self.add("pool", [x], (c, p, q), window=window, stride=stride, pad=pad, up=up, kind=kind)

    def concat(self, parts):
        return self.add("concat", list(parts), (sum(self.shape(x)[0] for x in parts),) + tuple(self.shape(parts[0])[1:]))

    def plus(self, a, b):
        return self.relu(self.add("add", [a, b], self.shape(a)))

    def dense(self, x, out):
        return self.add("dense", [x], (out, 1, 1))

    def response(self, x):
        return self.add("response", [x], self.shape(x))

    def head(self, x):
        pool = self.add("global", [x], (self.shape(x)[0], 1, 1))
        return self.softmax(self.dense(pool, self.wide(1000)))

    def softmax(self, x):
        return self.add("softmax", [x], self.shape(x))


def vgg_19(side=224, divisor=1):
    net = Net("vgg-19", side, divisor)
    x = net.x
    for channels, repeat in ((64, 2), (128, 2), (256, 4), (512, 4), (512, 4)):
        for _ in range(repeat):
            x = net.convolution(x, channels, 3)
        x = net.pooling(x, 2)
    x = net.relu(net.dense(x, net.wide(4096)))
    x = net.relu(net.dense(x, net.wide(4096)))
    net.softmax(net.dense(x, net.wide(1000)))
    return net


def googlenet(side=224, divisor=1):
    net = Net("googlenet", side, divisor)
    x = net.response(net.pooling(net.convolution(net.x, 64, 7, 2), up=1))
    x = net.response(net.convolution(net.convolution(x, 64), 192, 3))
    x = net.pooling(x, up=1)

    def inception(x, a, m3, a3, m5, a5, ap):
        one = net.convolution(x, a)
        three = net.convolution(net.convolution(x, m3), a3, 3)
        five = net.convolution(net.convolution(x, m5), a5, 5)
        return net.concat([one, three, five, net.convolution(net.pooling(x, stride=1, pad=1), ap)])

    for row in ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)):
        x = inception(x, *row)
    x = net.pooling(x, up=1)
    for row in (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ):
        x = inception(x, *row)
    x = net.pooling(x, up=1)
    for row in ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)):
        x = inception(x, *row)
    net.head(x)
    return net


def inception_v3(side=299, divisor=1):
    net = Net("inception-v3", side, divisor, normalized=True)
    conv = net.convolution
    x = conv(conv(conv(net.x, 32, 3, 2, pad=0), 32, 3, pad=0), 64, 3)
    x = net.pooling(conv(conv(net.pooling(x), 80), 192, 3, pad=0))

    def mean(x):
        return net.pooling(x, 3, 1, 1, kind="average")

    for m in (32, 64, 64):
        one = conv(x, 64)
        five = conv(conv(x, 48), 64, 5)
        three = conv(conv(conv(x, 64), 96, 3), 96, 3)
        x = net.concat([one, five, three, conv(mean(x), m)])
    one = conv(x, 384, 3, 2, pad=0)
    two = conv(conv(conv(x, 64), 96, 3), 96, 3, 2, pad=0)
    x = net.concat([one, two, net.pooling(x)])
    for m in (128, 160, 160, 192):
        one = conv(x, 192)
        two = conv(conv(conv(x, m), m, (1, 7)), 192, (7, 1))
        four = conv(x, m)
        for channels, window in ((m, (7, 1)), (m, (1, 7)), (m, (7, 1)), (192, (1, 7))):
            four = conv(four, channels, window)
        x = net.concat([one, two, four, conv(mean(x), 192)])
    one = conv(conv(x, 192), 320, 3, 2, pad=0)
    two = conv(conv(conv(conv(x, 192), 192, (1, 7)), 192, (7, 1)), 192, 3, 2, pad=0)
    x = net.concat([one, two, net.pooling(x)])
    for _ in range(2):
        one = conv(x, 320)
        two = conv(x, 384)
        wide, tall = conv(two, 384, (1, 3)), conv(two, 384, (3, 1))
        three = conv(conv(x, 448), 384, 3)
        parts = [one, wide, tall, conv(three, 384, (1, 3)), conv(three, 384, (3, 1))]
        x = net.concat(parts + [conv(mean(x), 192)])
    net.head(x)
    return net


def resnet(depth, side, divisor):
    net = Net(f"resnet-{depth}", side, divisor, normalized=True)
    conv = net.convolution
    x = net.pooling(conv(net.x, 64, 7, 2), pad=1)
    for stage, repeat in enumerate({18: (2, 2, 2, 2), 50: (3, 4, 6, 3)}[depth]):
        m = 64 << stage
        for n in range(repeat):
            stride = 2 if stage and not n else 1
            short = conv(x, 4 * m if depth == 50 else m, 1, stride, relu=False) if n == 0 else x
            if depth == 50:
                long = conv(conv(conv(x, m, 1, stride), m, 3), 4 * m, relu=False)
            else:
                long = conv(conv(x, m, 3, stride), m, 3, relu=False)
            x = net.plus(short, long)
    net.head(x)
    return net


def squeezenet(version, side, divisor):
    net = Net(f"squeezenet-{version}", side, divisor)

    def fire(x, m, e):
        squeeze = net.convolution(x, m)
        return net.concat([net.convolution(squeeze, e), net.convolution(squeeze, e, 3)])

    first, pooled = {"1.0": ((96, 7), (3, 7)), "1.1": ((64, 3), (2, 4))}[version]
    x = net.pooling(net.convolution(net.x, *first, 2, pad=0), up=1)
    for n, e in enumerate((64, 64, 128, 128, 192, 192, 256, 256)):
        if n in pooled:
            x = net.pooling(x, up=1)
        x = fire(x, e // 4, e)
    x = net.convolution(x, 1000)
    net.softmax(net.add("global", [x], (net.shape(x)[0], 1, 1)))
    return net


def mobilenet_v1(side=224, divisor=1):
    net = Net("mobilenet-v1", side, divisor, normalized=True)
    x = net.convolution(net.x, 32, 3, 2)
    rows = ((64, 1), (128, 2), (128, 1), (256, 2), (256, 1), (512, 2)) + ((512, 1),) * 5 + ((1024, 2), (1024, 1))
    for channels, stride in rows:
        x = net.convolution(net.convolution(x, None, 3, stride, each=True), channels)
    net.head(x)
    return net


def cross_layer(case, **_):
    """The four cases of "Cross-Layer Data Reuse"."""
    net = Net(f"cross-layer-{case}", 1)
    net.layers = []
    shape = {"a1": (192, 28, 28), "a2": (16, 80, 80), "b1": (64, 56, 56), "c1": (64, 56, 56)}[case]
    x = net.add("input", [], shape)
    if case == "a1":
        net.convolution(net.convolution(x, 16), 32, 5)
    elif case == "a2":
        net.convolution(net.convolution(x, None, 3, each=True), 16)
    elif case == "b1":
        squeeze = net.convolution(x, 16)
        net.concat([net.convolution(squeeze, 64), net.convolution(squeeze, 64, 3)])
    else:
        z = net.add("input", [], shape)
        net.convolution(net.plus(net.convolution(x, 256, relu=False), net.convolution(z, 256, relu=False)), 64)
    return net


NETWORKS = {
    "vgg-19": (vgg_19, 224, 32),
    "googlenet": (googlenet, 224, 64),
    "inception-v3": (inception_v3, 299, 75),
    "resnet-18": (lambda side, divisor: resnet(18, side, divisor), 224, 64),
    "resnet-50": (lambda side, divisor: resnet(50, side, divisor), 224, 64),
    "squeezenet-1.0": (lambda side, divisor: squeezenet("1.0", side, divisor), 227, 67),
    "squeezenet-1.1": (lambda side, divisor: squeezenet("1.1", side, divisor), 227, 67),
    "mobilenet-v1": (mobilenet_v1, 224, 64),
}
CASES = ("a1", "a2", "b1", "c1")
# Of the small versions.
DIVISOR = 8


def make(name, small=False):
    if name.startswith("cross-layer"):
        return cross_layer(name[-2:])
    build, side, small_side = NETWORKS[name]
    return build(small_side, DIVISOR) if small else build(side, 1)


def drawn(number, shape):
    """The values of the tensor `number`: kernels by the size of what they sum, all others around 1."""
    count = int(np.prod(shape))
    mask = np.uint64(0xFFFFFFFF)
    at = (np.arange(count, dtype=np.uint64) * np.uint64(2654435761) + np.uint64(number * 40503 + 12345)) & mask
    at ^= at >> np.uint64(16)
    at = (at * np.uint64(0x45D9F3B)) & mask
    at ^= at >> np.uint64(16)
    uniform = at.astype(np.float64) / 2.0**31 - 1.0
    if len(shape) == 1:
        values = 1.0 + 0.5 * uniform
    else:
        values = uniform * np.sqrt(6.0 / np.prod(shape[1:]))
    return values.reshape(shape)


def parameters(net):
    """The shapes of each layer's parameters, in the order of the recipe."""
    found = {}
    for at, layer in enumerate(net.layers):
        c = layer.shape[0]
        if layer.op == "conv":
            inputs, window = net.shape(layer.inputs[0])[0], layer.options["window"]
            kernel = (c, *window) if layer.options["groups"] > 1 else (c, inputs, *window)
            found[at] = [kernel] + [(c,)] * (4 if net.normalized else 1)
        elif layer.op == "dense":
            inputs = net.shape(layer.inputs[0])
            found[at] = [(c, *inputs) if inputs[1] * inputs[2] > 1 else (c, inputs[0]), (c,)]
    return found


def without_parameters(layer, given):
    """What a layer that has no parameters computes of PyTorch's tensors."""
    import torch
    import torch.nn.functional as F

    o = layer.options
    if layer.op == "relu":
        return F.relu(given[0])
    if layer.op == "pool" and o["kind"] == "max":
        return F.max_pool2d(given[0], o["window"], o["stride"], o["pad"], ceil_mode=o["up"] > 0)
    if layer.op == "pool":
        return F.avg_pool2d(given[0], o["window"], o["stride"], o["pad"], count_include_pad=False)
    if layer.op == "global":
        return given[0].mean(dim=(2, 3), keepdim=True)
    if layer.op == "concat":
        return torch.cat(given, dim=1)
    if layer.op == "add":
        return given[0] + given[1]
    if layer.op == "response":
        return F.local_response_norm(given[0], 5, alpha=1e-4, beta=0.75, k=1.0)
    if layer.op == "softmax":
        return F.softmax(given[0], dim=1)
    raise ValueError(f"no layer {layer.op}")


def values(net):
    """The result of every layer in f64, by PyTorch; images and parameters are drawn."""
    import torch
    import torch.nn.functional as F

    number, results = 0, {}
    shapes = parameters(net)
    for at, layer in enumerate(net.layers):
        given = [results[i] for i in layer.inputs]
        own = []
        for shape in shapes.get(at, []):
            number += 1
            own.append(torch.from_numpy(drawn(number, shape)))
        o = layer.options
        if layer.op == "input":
            y = torch.from_numpy(drawn(0, (1, *layer.shape)))
        elif layer.op == "conv":
            kernel = own[0].unsqueeze(1) if o["groups"] > 1 else own[0]
            bias = None if net.normalized else own[1]
            y = F.conv2d(given[0], kernel, bias, stride=o["stride"], padding=o["pad"], groups=o["groups"])
            if net.normalized:
                y = F.batch_norm(y, own[1], own[2], own[3], own[4], training=False, eps=1e-5)
        elif layer.op == "dense":
            y = F.linear(given[0].flatten(1), own[0].flatten(1), own[1])[:, :, None, None]
        else:
            y = without_parameters(layer, given)
        assert y.shape[1:] == layer.shape, (net.name, at, layer.op, y.shape, layer.shape)
        results[at] = y
    return results


def onnx_model(net, tensors=None):
    """The network as an ONNX model with these parameters, by default drawn ones; normalization is folded into weights."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    shapes, nodes, constants, inputs, number = parameters(net), [], [], [], 0

    def constant(name, array):
        constants.append(numpy_helper.from_array(np.ascontiguousarray(array, dtype=np.float32), name))
        return name

    for at, layer in enumerate(net.layers):
        y, given = f"t{at}", [f"t{i}" for i in layer.inputs]
        own = []
        for shape in shapes.get(at, []):
            number += 1
            own.append(drawn(number, shape) if tensors is None else tensors[number - 1].astype(np.float64).reshape(shape))
        o = layer.options
        if layer.op == "input":
            inputs.append(helper.make_tensor_value_info(y, TensorProto.FLOAT, [1, *layer.shape]))
        elif layer.op == "conv":
            kernel = own[0][:, None] if o["groups"] > 1 else own[0]
            bias = own[1]
            if net.normalized:
                factor = own[3] / np.sqrt(own[2] + 1e-5)
                kernel, bias = kernel * factor[:, None, None, None], own[4] - own[1] * factor
            weights = [constant(y + "k", kernel), constant(y + "b", bias)]
            pads = [*o["pad"], *o["pad"]]
            options = dict(kernel_shape=list(o["window"]), strides=[o["stride"]] * 2, pads=pads, group=o["groups"])
            nodes.append(helper.make_node("Conv", given + weights, [y], **options))
        elif layer.op == "pool":
            options = dict(kernel_shape=[o["window"]] * 2, strides=[o["stride"]] * 2, pads=[o["pad"]] * 4, ceil_mode=int(o["up"] > 0))
            nodes.append(helper.make_node("MaxPool" if o["kind"] == "max" else "AveragePool", given, [y], **options))
        elif layer.op == "dense":
            weights = [constant(y + "k", own[0].reshape(own[0].shape[0], -1)), constant(y + "b", own[1])]
            nodes.append(helper.make_node("Flatten", given, [y + "f"]))
            nodes.append(helper.make_node("Gemm", [y + "f"] + weights, [y], transB=1))
        else:
            kinds = {"relu": "Relu", "add": "Add", "concat": "Concat", "global": "GlobalAveragePool", "softmax": "Softmax", "response": "LRN"}
            options = {"concat": dict(axis=1), "softmax": dict(axis=1), "response": dict(size=5, alpha=1e-4, beta=0.75)}
            nodes.append(helper.make_node(kinds[layer.op], given, [y], **options.get(layer.op, {})))
    last = helper.make_tensor_value_info(nodes[-1].output[0], TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, net.name.replace(".", "_"), inputs, [last], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def peer_form(model, tensors):
    """For a worker of `memlet compare`: the ONNX model of a network, and what it is given."""
    net = make(model["network"])
    inputs = [f"t{at}" for at, layer in enumerate(net.layers) if layer.op == "input"]
    return onnx_model(net, [tensors[name] for name in model["parameters"]]), dict(zip(inputs, (tensors[name] for name in model["images"])))


def result_shape(model):
    """The shape of a network's result in its recipe, which has no rows and columns of one pixel."""
    net = make(model["network"])
    channels, rows, columns = net.layers[-1].shape
    return (1, channels) if rows * columns == 1 else (1, channels, rows, columns)


def block():
    """A step of recipes/resnet-18-block.yaml, n = 2, c = 6, 7 rows and 5 columns: results, running statistics and gradients."""
    import torch
    import torch.nn.functional as F

    shapes = [(2, 6, 7, 5)] + [(6, 6, 3, 3), (6,), (6,), (6,), (6,)] * 2 + [(2, 6, 7, 5)]
    x, k1, g1, b1, m1, v1, k2, g2, b2, m2, v2, up = (torch.from_numpy(drawn(n, shape)) for n, shape in enumerate(shapes))
    for leaf in (x, k1, g1, b1, k2, g2, b2):
        leaf.requires_grad_(True)
    z = F.relu(F.batch_norm(F.conv2d(x, k1, padding=1), m1, v1, g1, b1, training=True, momentum=0.1, eps=1e-5))
    y = F.relu(x + F.batch_norm(F.conv2d(z, k2, padding=1), m2, v2, g2, b2, training=True, momentum=0.1, eps=1e-5))
    y.backward(up)
    results = {"y": y, "one_mu2": m1, "one_var2": v1, "two_mu2": m2, "two_var2": v2, "d_x": x.grad}
    for name, leaf in (("one_k", k1), ("one_g", g1), ("one_b", b1), ("two_k", k2), ("two_g", g2), ("two_b", b2)):
        results["d_" + name] = leaf.grad
    return {name: value.detach() for name, value in results.items()}


def sums(tensor):
    """The first element, the last, and the sum of all times their places."""
    flat = tensor.detach().flatten().numpy()
    return f"[{flat[0]:.17e}, {flat[-1]:.17e}, {(flat * np.arange(flat.size)).sum():.17e}]"


def multiply_adds(net):
    """Of convolutions and dense layers, twice: flop."""
    total = 0
    for at, shapes in parameters(net).items():
        c, h, w = net.shape(at)
        total += 2 * c * h * w * int(np.prod(shapes[0][1:]))
    return total


if __name__ == "__main__":
    names = [name for name in sys.argv[2:] if not name.startswith("-")]
    if sys.argv[1:2] == ["--values"]:
        for name in names or NETWORKS:
            net = make(name, small=True)
            # What the softmax reads.
            scores = values(net)[len(net.layers) - 2]
            print(f'("{name}", {NETWORKS[name][2]}, {multiply_adds(make(name))}, {len(parameters(make(name)))}, {sums(scores)}),')
        for name, value in block().items():
            print(f'("{name}", {sums(value)}),')
    elif sys.argv[1:2] == ["--onnx"] and len(sys.argv) > 2:
        folder, names = sys.argv[2], names[1:]
        for name in names or [*NETWORKS, *(f"cross-layer/{case}" for case in CASES)]:
            import onnx

            onnx.save(onnx_model(make(name)), f"{folder}/{name.replace('/', '-')}.onnx")
    else:
        sys.exit(__doc__)
