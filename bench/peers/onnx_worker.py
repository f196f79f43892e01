"""ONNX Runtime as a peer: the forward pass alone, without dropout, which its inference does not have.

    onnx_worker.py THREADS VARIANT PRECISION

VARIANT is onnx, a graph of standard operators (networks are of those alone), which the runtime optimizes as far as it can, or onnx-attention, where the
runtime's own MultiHeadAttention (domain com.microsoft) stands for attention. PRECISION is highest: the runtime's CPU kernels
have no bf16.
"""
import json
import os
import sys
import tempfile
import time

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import networks
import session

# LayerNormalization is in the standard since 17, Gelu since 20.
OPSET = 20


class Graph:
    """Nodes and constants of a graph; every method returns the name of what it adds."""

    def __init__(self):
        self.nodes, self.constants = [], []

    def constant(self, value):
        self.constants.append(numpy_helper.from_array(np.ascontiguousarray(value), f"c{len(self.constants)}"))
        return self.constants[-1].name

    def node(self, kind, *inputs, outputs=1, **options):
        names = [f"n{len(self.nodes)}_{at}" for at in range(outputs)]
        self.nodes.append(helper.make_node(kind, list(inputs), names, **options))
        return names[0] if outputs == 1 else names

    def linear(self, x, weight, bias):
        """x · weightᵀ + bias; the runtime multiplies by [in, out]."""
        return self.node("Add", self.node("MatMul", x, self.constant(weight.T)), self.constant(bias))

    def reshape(self, x, shape):
        return self.node("Reshape", x, self.constant(np.array(shape, np.int64)))


def attention(graph, x, shape, model, t, own):
    (b, j, _), h, p = shape, model["heads"], model["size"]
    q, k, v = graph.node("Split", graph.linear(x, t["wqkv"], t["bqkv"]), outputs=3, axis=-1, num_outputs=3)
    if own:
        o = graph.node("MultiHeadAttention", q, k, v, domain="com.microsoft", num_heads=h, scale=p ** -0.5)
    else:
        heads = lambda z, order: graph.node("Transpose", graph.reshape(z, [b, j, h, p]), perm=order)
        s = graph.node("MatMul", heads(q, [0, 2, 1, 3]), heads(k, [0, 2, 3, 1]))
        s = graph.node("Mul", s, graph.constant(np.array(p ** -0.5, np.float32)))
        o = graph.node("MatMul", graph.node("Softmax", s, axis=-1), heads(v, [0, 2, 1, 3]))
        o = graph.reshape(graph.node("Transpose", o, perm=[0, 2, 1, 3]), [b, j, h * p])
    return graph.linear(o, t["wo"], t["bo"])


def layer(model, t, own):
    """The model as ONNX, from x to y, weights inside."""
    graph, shape = Graph(), t["x"].shape
    y = attention(graph, "x", shape, model, t, own)
    if model["family"] == "encoder":
        norm = lambda z, g, s, eps: graph.node("LayerNormalization", z, graph.constant(t[g]), graph.constant(t[s]), axis=-1, epsilon=eps)
        first, second = model["eps"]
        n = norm(graph.node("Add", "x", y), "g1", "s1", first)
        hidden = graph.node({"relu": "Relu", "gelu": "Gelu"}[model["activation"]], graph.linear(n, t["w1"], t["b1"]))
        y = norm(graph.node("Add", n, graph.linear(hidden, t["w2"], t["b2"])), "g2", "s2", second)
    tensor = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape))
    made = helper.make_graph(graph.nodes, "layer", [tensor("x")], [tensor(y)], graph.constants)
    opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    # An older runtime refuses a version of the file that it does not know, though it knows all that is in it.
    return helper.make_model(made, opset_imports=opsets, ir_version=10)


# Operators whose result may take the place of an input of the same size: element by element, or the sum that a convolution adds.
IN_PLACE = {"Add", "Sum", "Mul", "Sub", "Div", "Relu", "Clip", "Sigmoid", "Tanh", "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity"}


def alive_at_once(graph, bytes_of):
    """The most bytes of tensors that are alive at once when the nodes of a graph run in its order; results are kept to the end.

    A result takes the place of an input that nothing needs later wherever the operator can do so, whether or not the runtime does. What
    the caller gives stays to the end: it is the caller's.
    """
    given = {tensor.name for tensor in graph.input}
    last = {name: at for at, node in enumerate(graph.node) for name in node.input}
    last |= {output.name: len(graph.node) for output in graph.output}
    live = peak = sum(map(bytes_of, given))
    for at, node in enumerate(graph.node):
        made = sum(bytes_of(name) for name in node.output)
        dying = {name for name in node.input if name and name not in given and last[name] == at and bytes_of(name)}
        over = dying if node.op_type in IN_PLACE else dying & set(node.input[3:4]) if node.op_type == "Conv" else set()
        shared = max((bytes_of(name) for name in over if bytes_of(name) == made), default=0)
        peak = max(peak, live + made - shared)
        live += made - sum(bytes_of(name) for name in dying)
    return peak


class Peer:
    def __init__(self, variant, threads, model, tensors):
        self.threads = threads
        if model["family"] == "network":
            made, self.x = networks.peer_form(model, tensors)
        else:
            made, self.x = layer(model, tensors, variant == "onnx-attention"), {"x": tensors["x"]}
        self.made = made.SerializeToString()
        self.run = onnxruntime.InferenceSession(self.made, self.options(), providers=["CPUExecutionProvider"])
        self.shape = networks.result_shape(model) if model["family"] == "network" else None
        self.versions = {"onnxruntime": onnxruntime.__version__, "onnx": onnx.__version__, "threads": threads}

    def options(self):
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads, options.inter_op_num_threads = self.threads, 1
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        return options

    def prepare(self, dropout):
        if dropout:
            raise ValueError("ONNX Runtime has no dropout at inference")
        return self.run

    def results(self, run):
        y = run.run(None, self.x)[0]
        return (y if self.shape is None else y.reshape(self.shape)), None

    def memory(self, _):
        """Bytes of x and the weights, and with them of what is alive at once: sizes by the runtime's profile of one run, of the graph as it
        has optimized it. What an operator needs inside itself does not count."""
        with tempfile.TemporaryDirectory() as folder:
            options = self.options()
            options.enable_profiling, options.profile_file_prefix = True, os.path.join(folder, "profile")
            options.optimized_model_filepath = os.path.join(folder, "optimized.onnx")
            # It warns that the optimized graph belongs to this processor.
            options.log_severity_level = 3
            run = onnxruntime.InferenceSession(self.made, options, providers=["CPUExecutionProvider"])
            run.run(None, self.x)
            with open(run.end_profiling()) as profile:
                events = json.load(profile)
            graph = onnx.load(options.optimized_model_filepath).graph
        ran = [e["args"] for e in events if e["name"].endswith("_kernel_time")]
        if [e["op_name"] for e in ran] != [node.op_type for node in graph.node]:
            raise ValueError("the profile does not have the nodes of the optimized graph, in its order")
        known = {given: value.nbytes for given, value in self.x.items()}
        known |= {node.output[0]: int(e["output_size"]) for e, node in zip(ran, graph.node)}
        weights = sum(numpy_helper.to_array(constant).nbytes for constant in graph.initializer)
        given = weights + sum(value.nbytes for value in self.x.values())
        return given, weights + alive_at_once(graph, lambda name: known.get(name, 0))

    def step(self, run):
        begin = time.perf_counter()
        run.run(None, self.x)
        forward = time.perf_counter() - begin
        return forward, 0.0, forward


if __name__ == "__main__":
    threads, variant, _ = sys.argv[1:]
    session.serve(lambda model, tensors: Peer(variant, int(threads), model, tensors))
