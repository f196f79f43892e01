#!/usr/bin/env bash
# DaCe 1.0.2, as pip installs it, generates code for no program at all: its requirement is `networkx` without a bound, and networkx 3.6.1
# leaves the first node out of `immediate_dominators`, which DaCe looks up.
#
# The program of one state loads and validates. Generating its code ends in `KeyError: SDFGState (main)`, which reads like a fault of the
# file that was loaded. With networkx 3.4.2 the same package runs it. DaCe also needs `cmake` on the path, which no requirement names.
#
# Output seen:
#   networkx 3.6.1: valid, code: KeyError
#   networkx 3.4.2: valid, code: 1 or more files
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install -q dace==1.0.2 networkx==3.6.1 setuptools==80.9.0
cat > "$folder/run.py" <<'PY'
import sys
import dace
import networkx
program = dace.SDFG("one")
program.add_array("a", [4], dace.float64)
program.add_state("main").add_mapped_tasklet(
    "fill", {"i": "0:4"}, {}, "out = i", {"out": dace.Memlet("a[i]")}, external_edges=True)
program.validate()
try:
    found = "1 or more files" if program.generate_code() else "none"
except KeyError as error:
    found = type(error).__name__
print(f"networkx {networkx.__version__}: valid, code: {found}")
assert found == sys.argv[1], found
PY
cd "$folder"
venv/bin/python -W ignore run.py KeyError
venv/bin/pip install -q networkx==3.4.2
venv/bin/python -W ignore run.py "1 or more files"
