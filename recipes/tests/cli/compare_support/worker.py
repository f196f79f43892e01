"""Answers as a worker does, without any framework: each variant behaves in its own way.

eager and onnx agree, sdpa and onnx-attention are wrong, compile reports an error, compile-sdpa dies with a last word, jax
gives no JSON, jax-rbg agrees but fails in its third step. Onnx must never be asked for dropout.
"""
import json
import shutil
import sys
import time

variant = sys.argv[2]
steps = 0
for line in sys.stdin:
    request = json.loads(line)
    assert not (variant.startswith("onnx") and request.get("dropout"))
    if request["do"] == "load":
        assert request["model"]["family"] == "attention" and request["model"]["heads"] == 3
        answer = {"versions": {"fake": variant, "threads": sys.argv[1]}}
    elif request["do"] == "check":
        shutil.copyfile("truth.safetensors", request["results"])
        if variant in ("sdpa", "onnx-attention"):
            with open(request["results"], "r+b") as file:
                file.seek(-1, 2)
                file.write(b"\x45")  # the exponent of the last number
        answer = {"finite": True, "first_s": 0.25}
        if variant == "compile":
            answer = {"error": "RuntimeError: no compiler"}
        if variant == "compile-sdpa":
            sys.exit("out of memory")
    elif request["do"] == "memory":
        answer = {"given_bytes": 2_000_000, "peak_bytes": 6_000_000}
    else:
        steps += 1
        with open("turns", "a") as turns:
            print(variant, "begins", file=turns)
        time.sleep(0.002)
        with open("turns", "a") as turns:
            print(variant, "ends", file=turns)
        answer = {"forward_ms": 1.0, "backward_ms": 2.0, "step_ms": 3.0, "cpu_s": 0.0, "wall_s": 0.002}
        if variant == "onnx":
            answer |= {"backward_ms": 0.0, "step_ms": 1.0}
        if variant == "jax-rbg" and steps == 3:
            answer = {"error": "gone"}
    print("what?" if variant == "jax" else json.dumps(answer), flush=True)
