"""The workloads of FusionStitching in JAX: their tensors for recipes, their results, their launches and their times.

    stitching_worker.py tensors NAME FILE.safetensors    inputs, parameters and states under the recipe's names
    stitching_worker.py results NAME FILE.npz            all results, computed in f64
    stitching_worker.py launches NAME…                   of XLA on this machine's cores; one JSON object a line
    stitching_worker.py launches --h100 PLUGIN NAME…     of XLA compiled for an H100, with xla_cuda_plugin.so of jax-cuda12-pjrt
    stitching_worker.py times NAME THREADS               answers each line of stdin, a number of seconds, with times of that long
"""
import json
import os
import sys
import time

# XLA takes as many threads as the process may use processors; this must come before JAX is imported.
if sys.argv[1] == "times" and hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: int(sys.argv[3])])
if "--h100" in sys.argv:
    # Without a GPU nothing can be tried out, so XLA takes its own guesses.
    os.environ.setdefault("XLA_FLAGS", "--xla_gpu_autotune_level=0 --xla_gpu_enable_command_buffer=")
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import numpy as np

from stitching import all_workloads


def results(workload):
    """All results in f64; numbers that are counted stay whole."""
    jax.config.update("jax_enable_x64", True)
    wide = {n: np.asarray(v, np.float64) if np.asarray(v).dtype == np.float32 else v for n, v in workload.tensors.items()}
    return {n: np.asarray(v) for n, v in jax.jit(workload.step)(wide).items()}


def serve_times(workload):
    """Steps that follow one another, each with the parameters and states of the one before it, as in training."""
    kept = {n: jax.numpy.asarray(workload.tensors[n]) for n in workload.updated}
    given = {n: jax.numpy.asarray(v) for n, v in workload.tensors.items() if n not in workload.updated}
    begin = time.perf_counter()
    step = jax.jit(lambda kept, given: workload.step(kept | given), donate_argnums=0).lower(kept, given).compile()

    def once(kept):
        found = jax.block_until_ready(step(kept, given))
        return {n: found[n] for n in workload.updated}

    kept = once(once(kept))
    print(json.dumps({"ready_s": time.perf_counter() - begin, "jax": jax.__version__}), flush=True)
    for line in sys.stdin:
        samples, cpu, end = [], time.process_time(), time.perf_counter() + float(line)
        while time.perf_counter() < end or len(samples) < 3:
            begin = time.perf_counter()
            kept = once(kept)
            samples.append(1e3 * (time.perf_counter() - begin))
        print(json.dumps({"ms": samples, "cpu_ms": 1e3 * (time.process_time() - cpu) / len(samples)}), flush=True)


def main():
    verb, arguments, known = sys.argv[1], sys.argv[2:], all_workloads()
    if verb == "launches":
        compiler = None
        if arguments[0] == "--h100":
            from stitching.launches import H100Compiler

            compiler, arguments = H100Compiler(arguments[1]), arguments[2:]
        from stitching.launches import on_cpu

        for name in arguments:
            count = compiler.launches if compiler else on_cpu
            print(json.dumps({"workload": name, "launches": count(known[name]()), "for": "H100" if compiler else "cores"}), flush=True)
        return
    workload = known[arguments[0]]()
    if verb == "tensors":
        from safetensors.numpy import save_file

        save_file({n: np.array(v, order="C") for n, v in workload.as_recipe(workload.tensors).items()}, arguments[1])
    elif verb == "results":
        np.savez(arguments[1], **workload.as_recipe(results(workload)))
    elif verb == "times":
        serve_times(workload)
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
