#!/usr/bin/env bash
# openvino 2026.4.1 computes of a convolution what later 1x1 convolutions with a stride read, so that rates by a model's operations are no
# rates of the processor.
#
# A 1x1 convolution that moves by 2 reads a quarter of an image. OpenVINO moves its stride up, through element-wise layers and sums, to the
# convolution before: a 3x3 convolution of 56x56 places runs with stride 2 and makes 28x28, and where the sum before has another operand a
# 1x1 maximum pooling with stride 2, which the model does not have, picks its places. Nothing is said, results are the same, and the profile
# shows the layer under its own name with a quarter of its time. ResNet-50 as Caffe has it takes a tenth fewer operations than its layers
# have: who divides these by the time finds a processor at its peak. A slice with steps of 2, which reads the same places, moves nothing; nor
# does a stride where anyone else reads the whole image.
#
# Output seen (places that the 3x3 convolution makes, poolings that the model does not have):
#   two 1x1 convolutions with stride 2: 28x28, 0
#   the same behind a sum with another image: 28x28, 1
#   one of them with stride 1: 56x56, 0
#   a slice with steps of 2 before 1x1 convolutions: 56x56, 0
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnx==1.23.2 openvino==2026.4.1 numpy==2.4.6
cat > "$folder/run.py" <<'PY'
import numpy as np
import onnx
import openvino
from onnx import TensorProto, helper, numpy_helper

random = np.random.default_rng(0)


def compiled(strides, plus=False, slices=False):
    """The places that the 3x3 convolution makes in the compiled model, and how many poolings that has."""
    weights, nodes = [], []

    def weight(name, values):
        weights.append(numpy_helper.from_array(values, name))
        return name

    def convolution(name, x, o, c, window, stride):
        w = weight(f"{name}_w", random.standard_normal((o, c, window, window)).astype(np.float32))
        pad = window // 2
        nodes.append(helper.make_node("Conv", [x, w], [name], name=name, pads=[pad] * 4, strides=[stride] * 2))
        return name

    image = convolution("first", "x", 16, 16, 3, 1)
    if plus:
        nodes.append(helper.make_node("Add", [image, "x"], ["sum"]))
        image = "sum"
    nodes.append(helper.make_node("Relu", [image], ["image"]))
    image = "image"
    if slices:
        at = [weight(name, np.array(values, np.int64)) for name, values in (("from", [0, 0]), ("to", [99, 99]), ("axes", [2, 3]), ("by", [2, 2]))]
        nodes.append(helper.make_node("Slice", [image, *at], ["sliced"]))
        image = "sliced"
    results = [convolution(f"y{n}", image, 32, 16, 1, stride) for n, stride in enumerate(strides)]
    given = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 16, 56, 56])]
    made = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [None] * 4) for name in results]
    graph = helper.make_graph(nodes, "g", given, made, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    core = openvino.Core()
    program = core.compile_model(core.read_model(model.SerializeToString()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    operations = program.get_runtime_model().get_ops()
    kind = lambda operation: operation.get_rt_info()["layerType"].astype(str)  # noqa: E731
    first = next(o for o in operations if kind(o) == "Convolution" and "first" in str(o.get_rt_info()["originalLayersNames"].astype(str)))
    return "x".join(str(n) for n in first.get_output_shape(0)[2:]), sum("ool" in kind(o) for o in operations)


CASES = {
    "two 1x1 convolutions with stride 2": compiled([2, 2]),
    "the same behind a sum with another image": compiled([2, 2], plus=True),
    "one of them with stride 1": compiled([2, 1]),
    "a slice with steps of 2 before 1x1 convolutions": compiled([1, 1], slices=True),
}
for case, (places, poolings) in CASES.items():
    print(f"{case}: {places}, {poolings}")
assert list(CASES.values()) == [("28x28", 0), ("28x28", 1), ("56x56", 0), ("56x56", 0)]
PY
"$folder/venv/bin/python" "$folder/run.py"
