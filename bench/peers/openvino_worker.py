"""OpenVINO as a peer: convolutional networks, read from the ONNX model that ONNX Runtime is given, in f32.

    openvino_worker.py THREADS VARIANT PRECISION
"""
import sys
import time

import openvino

import networks
import session


class Peer:
    def __init__(self, threads, model, tensors):
        made, given = networks.peer_form(model, tensors)
        core = openvino.Core()
        options = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1, "INFERENCE_PRECISION_HINT": "f32", "ENABLE_CPU_PINNING": False}
        compiled = core.compile_model(core.read_model(made.SerializeToString()), "CPU", options)
        self.request, self.given, self.shape = compiled.create_infer_request(), given, networks.result_shape(model)
        self.versions = {"openvino": openvino.__version__.split("-")[0], "threads": threads}

    def prepare(self, dropout):
        if dropout:
            raise ValueError("OpenVINO has no dropout at inference")
        return self.request

    def run(self, request):
        return request.infer(self.given, share_inputs=True, share_outputs=True)

    def results(self, request):
        return next(iter(self.run(request).values())).reshape(self.shape), None

    def step(self, request):
        begin = time.perf_counter()
        self.run(request)
        forward = time.perf_counter() - begin
        return forward, 0.0, forward


if __name__ == "__main__":
    threads = int(sys.argv[1])
    session.serve(lambda model, tensors: Peer(threads, model, tensors))
