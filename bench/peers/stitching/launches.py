"""Launches of a compiled program of XLA: instructions that do work, those of a loop as often as it turns.

What only names or groups values does no work, and neither does a loop's condition. A fusion is one launch, whatever it holds.
"""
import re

import jax
import numpy as np

FREE = {"parameter", "constant", "tuple", "bitcast", "get-tuple-element", "after-all", "opt-barrier", "optimization-barrier"}
INSTRUCTION = re.compile(r"\s+(?:ROOT )?%?[\w.\-]+ = (?:\(.*?\)|\S+) ([a-z][\w\-]*)\((.*)")
HEADER = re.compile(r"(ENTRY )?%?([\w.\-]+) .*\{$")


def computations(text):
    """Instructions, as operator and rest of the line, by the name of their computation; the entry is called None."""
    found, current = {}, None
    for line in re.sub(r"/\*.*?\*/", "", text).splitlines():
        header = HEADER.match(line)
        if header and not line.startswith((" ", "HloModule")):
            current = found.setdefault(header[2], [])
            if header[1]:
                found[None] = current
        elif current is not None and (instruction := INSTRUCTION.match(line)):
            current.append((instruction[1], instruction[2]))
    return found


def named(rest, key):
    found = re.search(rf"\b{key}=%?([\w.\-]+)", rest)
    return found and found[1]


def turns(found, rest):
    """How often a loop turns: as XLA knows, else the largest number that its condition compares with."""
    known = re.search(r'known_trip_count"?:\{"n":"(\d+)"', rest)
    if known:
        return int(known[1])
    pending, numbers = [named(rest, "condition")], []
    while pending:
        for operator, rest in found.get(pending.pop(), []):
            if operator == "constant" and (number := re.match(r"(\d+)\)", rest)):
                numbers.append(int(number[1]))
            if (called := named(rest, "calls")) is not None:
                pending.append(called)
    if not numbers:
        raise ValueError(f"a loop whose number of turns is unknown: {rest[:200]}")
    return max(numbers)


def launches(text):
    """How many launches a run of a compiled program takes, from its text after optimization."""
    found = computations(text)

    def of(name):
        total = 0
        for operator, rest in found.get(name, []):
            if operator in FREE:
                continue
            if operator == "while":
                total += turns(found, rest) * of(named(rest, "body"))
            elif operator == "call":
                total += of(named(rest, "to_apply"))
            elif operator == "conditional":
                branches = re.findall(r"%([\w.\-]+)", rest.split("branch_computations=")[-1].split("}")[0])
                total += 1 + max((of(branch) for branch in branches), default=0)
            else:
                total += 1
        return total

    return of(None)


def on_cpu(workload):
    """Launches of XLA's backend for this machine."""
    given = {n: v for n, v in workload.tensors.items() if n not in workload.updated}
    kept = {n: workload.tensors[n] for n in workload.updated}
    function = jax.jit(lambda kept, given: workload.step(kept | given), donate_argnums=0)
    return launches(function.lower(kept, given).compile().as_text())


# XLA compiles for a device that is described to it; this is NVIDIA's H100 with 80 GB.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128 block_dim_limit_x: 2147483647 block_dim_limit_y: 65535
  block_dim_limit_z: 65535 memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84978434048 shared_memory_per_block_optin: 232448 cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
runtime_version: { major: 12 minor: 8 patch: 0 }
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 7 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""


class H100Compiler:
    """XLA's compiler for an H100, which needs no GPU: `plugin` is xla_cuda_plugin.so of the package jax-cuda12-pjrt."""

    def __init__(self, plugin):
        from jax._src.lib import xla_client
        from jax.experimental import topologies

        api = xla_client.load_pjrt_plugin_dynamically("cuda", plugin)
        xla_client.initialize_pjrt_plugin("cuda")
        topology = xla_client.make_c_api_device_topology(api, "h100", topology="1 x 1 x 1", target_config=H100)
        device = topologies.TopologyDescription(topology._make_compile_only_devices()).devices[0]
        self.place = jax.sharding.SingleDeviceSharding(device)

    def launches(self, workload):
        def described(names):
            arrays = ((n, np.asarray(workload.tensors[n])) for n in names)
            return {n: jax.ShapeDtypeStruct(v.shape, v.dtype, sharding=self.place) for n, v in arrays}

        given = described(n for n in workload.tensors if n not in workload.updated)
        function = jax.jit(lambda kept, given: workload.step(kept | given), donate_argnums=0)
        traced = function.trace(described(workload.updated), given)
        return launches(traced.lower(lowering_platforms=("cuda",)).compile().as_text())
