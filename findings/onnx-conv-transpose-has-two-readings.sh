#!/usr/bin/env bash
# onnx 1.23.2 and onnxruntime 1.32.0 read ConvTranspose in two ways, and the reference evaluator computes neither groups nor `output_shape`.
#
# By the operator's text SAME_UPPER and SAME_LOWER mean a result of `input * stride` places an axis. Where strides are larger than kernels the
# padding for that is negative. The reference evaluator goes by the text; onnx's own shape inference and ONNX Runtime stop at a padding of 0
# and make a smaller result, so that one package has two shapes for one valid node. And the evaluator, the usual yardstick for importers,
# raises ValueError for `group=2` and for `output_shape` without `auto_pad`, which checker and shape inference accept and ONNX Runtime
# computes: the node tests hold stored values of these, not the evaluator's.
#
# Output seen:
#   SAME_UPPER, strides 3 and 4, kernel 2x2, of 3x4: shape inference (1, 3, 8, 14), reference (1, 3, 9, 16), ONNX Runtime (1, 3, 8, 14)
#   two groups: shape inference (1, 6, 7, 9), reference ValueError, ONNX Runtime (1, 6, 7, 9)
#   output_shape 6x8, strides 2, kernel 3x3, of 3x4: shape inference (1, 3, 6, 8), reference ValueError, ONNX Runtime (1, 3, 6, 8)
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
cat > "$folder/run.py" <<'PY'
import warnings
import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

warnings.simplefilter("ignore")
onnxruntime.set_default_logger_severity(4)


def shapes(x, w, **attributes):
    """The shape that each makes of a transposed convolution, or the error that it raises."""
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in (("x", x), ("w", w))]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, [None] * 4)
    node = helper.make_node("ConvTranspose", ["x", "w"], ["y"], **attributes)
    model = helper.make_model(helper.make_graph([node], "g", given, [result]), opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model, full_check=True)
    inferred = onnx.shape_inference.infer_shapes(model).graph.output[0].type.tensor_type.shape.dim
    tensors = {"x": np.ones(x, np.float32), "w": np.ones(w, np.float32)}

    def of_runtime():
        session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
        return session.run(None, tensors)[0]

    found = {"shape inference": tuple(d.dim_value for d in inferred)}
    runs = {"reference": lambda: ReferenceEvaluator(model).run(None, tensors)[0], "ONNX Runtime": of_runtime}
    for who, run in runs.items():
        try:
            found[who] = tuple(int(n) for n in run().shape)
        except Exception as error:  # noqa: BLE001
            found[who] = type(error).__name__
    return found


CASES = {
    "SAME_UPPER, strides 3 and 4, kernel 2x2, of 3x4": shapes((1, 2, 3, 4), (2, 3, 2, 2), strides=[3, 4], auto_pad="SAME_UPPER"),
    "two groups": shapes((1, 4, 3, 4), (4, 3, 3, 3), strides=[2, 2], group=2),
    "output_shape 6x8, strides 2, kernel 3x3, of 3x4": shapes((1, 2, 3, 4), (2, 3, 3, 3), strides=[2, 2], output_shape=[6, 8]),
}
for case, found in CASES.items():
    print(f"{case}: " + ", ".join(f"{who} {what}" for who, what in found.items()))
same, groups, shape = CASES.values()
assert same == {"shape inference": (1, 3, 8, 14), "reference": (1, 3, 9, 16), "ONNX Runtime": (1, 3, 8, 14)}
assert groups == {"shape inference": (1, 6, 7, 9), "reference": "ValueError", "ONNX Runtime": (1, 6, 7, 9)}
assert shape == {"shape inference": (1, 3, 6, 8), "reference": "ValueError", "ONNX Runtime": (1, 3, 6, 8)}
PY
"$folder/venv/bin/python" -W ignore "$folder/run.py"
