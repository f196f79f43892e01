#!/usr/bin/env bash
# onnx 1.23.2: a backend node test is a model of the operator set in which its operator last changed, not of the newest one, and the wheel
# holds no node tests.
#
# `And`, `Or` and `Xor` are tested in operator set 7, `Not` in 1, `Shrink` in 9, `ConvInteger` in 10. An importer that takes sets from 13 on,
# which is what exporters have written for years, fails them although it knows the operators. Data of the tests are no longer in
# `onnx/backend/test/data/node`; `collect_testcases` makes them. Tensors are NumPy arrays, but for the tests of Cast, CastLike,
# QuantizeLinear and DequantizeLinear, whose tensors may be TensorProto: `numpy.asarray` of one is an array of objects, and `numpy.savez`
# stores it without a word.
#
# Output seen:
#   1884 tests; operator sets of 13 and newer 1809, older 75; and2d 7, not_2d 1
#   tensors as arrays and as TensorProto: 1506 and 189 tests; asarray of one has the type object
#   onnx/backend/test/data/node exists: False
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q onnx==1.23.2 numpy==2.4.6 ml_dtypes==0.6.0
cat > "$folder/run.py" <<'PY'
import pathlib
import numpy as np
import onnx
from onnx.backend.test.case.node import collect_testcases
cases = collect_testcases(None)
version = {case.name: next((s.version for s in case.model.opset_import if s.domain in ("", "ai.onnx")), 99) for case in cases}
old = sum(v < 13 for v in version.values())
print(f"{len(cases)} tests; operator sets of 13 and newer {len(cases) - old}, older {old}; "
      f"and2d {version['test_and2d']}, not_2d {version['test_not_2d']}")
tensors = {case.name: [t for part in case.data_sets[0] for t in part] for case in cases}
protos = [name for name, of in tensors.items() if any(isinstance(t, onnx.TensorProto) for t in of)]
arrays = [name for name, of in tensors.items() if of and all(isinstance(t, np.ndarray) for t in of)]
cast = tensors["test_cast_FLOAT_to_DOUBLE"][0]
print(f"tensors as arrays and as TensorProto: {len(arrays)} and {len(protos)} tests; asarray of one has the type {np.asarray(cast).dtype}")
data = pathlib.Path(onnx.__file__).parent / "backend/test/data/node"
print(f"onnx/backend/test/data/node exists: {data.exists()}")
assert old > 50 and version["test_and2d"] == 7 and version["test_not_2d"] == 1
assert isinstance(cast, onnx.TensorProto) and np.asarray(cast).dtype == object and not data.exists()
PY
"$folder/venv/bin/python" -W ignore "$folder/run.py"
