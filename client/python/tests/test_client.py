#!/usr/bin/env python3
"""The Python client against a fake server in this process, and, where there is one, a real server.

Usage: test_client.py [BUILD_DIR [SOURCE_DIR]]. Exits with 77 (skipped) where grpcio is missing.
"""
import asyncio
import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile
import threading
import unittest
from concurrent import futures

try:
    import grpc
    import google.protobuf  # noqa: F401
except ImportError as error:
    print(f"SKIPPED: {error}; Debian's python3-grpcio and python3-protobuf bring it")
    sys.exit(77)

HERE = pathlib.Path(__file__).resolve().parent
# The messages are generated outside the source tree.
scratch = tempfile.TemporaryDirectory()
package = pathlib.Path(scratch.name) / "tessera_client"
package.mkdir()
for module in (HERE.parent / "tessera_client").glob("*.py"):
    (package / module.name).write_text(module.read_text())
subprocess.run([sys.executable, HERE.parent / "generate_protos.py", package / "_proto"], check=True)
sys.path.insert(0, scratch.name)
os.environ.pop("TESSERA_ADDRESS", None)

import tessera_client  # noqa: E402
from tessera_client._proto.tessera.v1 import control_pb2_grpc, inference_pb2_grpc  # noqa: E402


class FakeInference(inference_pb2_grpc.InferenceServicer):
    def __init__(self):
        self.refusals = 0
        self.calls = 0
        self.cancelled = threading.Event()
        self.request = None
        self.metadata = {}

    def _begin(self, request, context):
        self.calls += 1
        self.request = request
        self.metadata = dict(context.invocation_metadata())
        if self.refusals > 0:
            self.refusals -= 1
            context.set_trailing_metadata((("grpc-retry-pushback-ms", "5"),))
            context.abort(grpc.StatusCode.UNAVAILABLE, "refused")

    def Generate(self, request, context):
        self._begin(request, context)
        context.add_callback(self.cancelled.set)
        types = tessera_client.inference
        yield types.GenerateResponse(accepted=types.Accepted(request_id="fake"))
        count = request.stopping.max_tokens or 3
        for i in range(count):
            if not context.is_active():
                return
            yield types.GenerateResponse(delta=types.Delta(text=f"word{i} ", num_tokens=1))
        yield types.GenerateResponse(finished=types.Finished(reason=2))

    def GenerateOnce(self, request, context):
        self._begin(request, context)
        response = tessera_client.inference.GenerateOnceResponse(request_id="fake", seed=7)
        response.outputs.add(text="whole").finished.reason = 1
        response.usage.completion_tokens = 5
        return response

    def Embed(self, request, context):
        self._begin(request, context)
        response = tessera_client.inference.EmbedResponse()
        for one in request.inputs:
            response.embeddings.add(values=[len(one.text), 1])
        return response

    def Tokenize(self, request, context):
        return tessera_client.inference.TokenizeResponse(token_ids=request.prompt.text.encode())

    def Detokenize(self, request, context):
        return tessera_client.inference.DetokenizeResponse(text=bytes(request.token_ids).decode())


class FakeControl(control_pb2_grpc.ControlServicer):
    def GetModelInfo(self, request, context):
        return tessera_client.control.ModelInfo(name="fake-model")

    def Abort(self, request, context):
        return tessera_client.control.AbortResponse(not_found=request.request_ids)


class FakeServerTest(unittest.TestCase):
    def setUp(self):
        self.inference = FakeInference()
        self.server = grpc.server(futures.ThreadPoolExecutor(4))
        inference_pb2_grpc.add_InferenceServicer_to_server(self.inference, self.server)
        control_pb2_grpc.add_ControlServicer_to_server(FakeControl(), self.server)
        self.address = f"127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def tearDown(self):
        self.server.stop(None).wait()

    def test_calls(self):
        with tessera_client.Client(self.address, api_key="k3y") as client:
            self.assertEqual(list(client.stream("hello", max_tokens=2)), ["word0 ", "word1 "])
            self.assertEqual(self.inference.metadata["authorization"], "Bearer k3y")
            answer = client.generate("hello", temperature=0, stop="x", logit_bias={3: 1.5}, timeout=1.5, n=1)
            self.assertEqual((answer.text, answer.finish_reason, answer.seed), ("whole", "stop", 7))
            self.assertTrue(self.inference.request.sampling.HasField("temperature"))
            self.assertEqual(list(self.inference.request.stopping.stop_strings), ["x"])
            self.assertEqual(self.inference.request.timeout.ToMilliseconds(), 1500)
            client.generate(chat=[("user", "hi"), {"role": "assistant", "content": "yes"}], system="be brief")
            self.assertEqual([m.role for m in self.inference.request.prompt.chat.messages],
                             ["system", "user", "assistant"])
            client.generate([1, 2, 3])
            self.assertEqual(list(self.inference.request.prompt.token_ids.ids), [1, 2, 3])
            self.assertEqual(client.embed(["a", "bcd"], pooling="mean", normalize=False), [[1, 1], [3, 1]])
            self.assertEqual(client.detokenize(client.tokenize("AB")), "AB")
            self.assertEqual(client.model_info().name, "fake-model")
            self.assertEqual(list(client.abort("x").not_found), ["x"])

    def test_wrong_arguments_are_named(self):
        with tessera_client.Client(self.address) as client:
            with self.assertRaisesRegex(TypeError, "max_token'"):
                client.generate("x", max_token=3)
            with self.assertRaisesRegex(ValueError, "either a prompt or a chat"):
                client.generate()
            with self.assertRaisesRegex(ValueError, "expected 'last', 'mean' or 'cls'"):
                client.embed(["x"], pooling="max")

    def test_retries_before_the_first_message(self):
        with tessera_client.Client(self.address) as client:
            self.inference.refusals = 2
            self.assertEqual("".join(client.stream("x")), "word0 word1 word2 ")
            self.assertEqual(self.inference.calls, 3)
        with tessera_client.Client(self.address, max_attempts=1) as client:
            self.inference.refusals = 1
            with self.assertRaises(grpc.RpcError) as raised:
                client.generate("x")
            self.assertEqual(raised.exception.code(), grpc.StatusCode.UNAVAILABLE)

    def test_leaving_a_stream_cancels_it(self):
        with tessera_client.Client(self.address) as client:
            for _ in client.stream("x", max_tokens=10**6):
                break
            self.assertTrue(self.inference.cancelled.wait(10))

    def test_async(self):
        async def run():
            async with tessera_client.AsyncClient(self.address) as client:
                texts = [text async for text in client.stream("x")]
                answer = await client.generate("x")
                vectors = await client.embed(["abc"])
                ids = await client.tokenize("AB")
                name = (await client.model_info()).name
                self.inference.cancelled.clear()
                stream = client.stream("x", max_tokens=10**6)
                async for _ in stream:
                    break
                await stream.aclose()
                cancelled = await asyncio.to_thread(self.inference.cancelled.wait, 10)
                return "".join(texts), answer.text, vectors, ids, name, cancelled

        self.assertEqual(asyncio.run(run()),
                         ("word0 word1 word2 ", "whole", [[3, 1]], [65, 66], "fake-model", True))


class RealServerTest(unittest.TestCase):
    def test_against_the_bundled_model(self):
        if len(sys_arguments) < 2 or not (pathlib.Path(sys_arguments[0]) / "tessera-server").exists():
            self.skipTest("no tessera-server here")
        build, source = map(pathlib.Path, sys_arguments)
        with contextlib.ExitStack() as stack:
            port_file = pathlib.Path(scratch.name) / "port"
            process = subprocess.Popen([build / "tessera-server", "--model", source / "deploy/model", "--listen",
                                        "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--port-file", port_file],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            deadline = 600
            while deadline and not port_file.exists():
                deadline -= 1
                threading.Event().wait(0.1)
            port = int(port_file.read_text().split()[0])
            client = stack.enter_context(tessera_client.Client(f"127.0.0.1:{port}"))
            streamed = "".join(client.stream("Define: lantern", max_tokens=12, temperature=0))
            whole = client.generate("Define: lantern", max_tokens=12, temperature=0)
            self.assertEqual(streamed, whole.text)
            self.assertTrue(streamed.strip())
            vectors = client.embed(["a small dog"])
            self.assertEqual(len(vectors[0]), client.model_info().hidden_size)


if __name__ == "__main__":
    sys_arguments, sys.argv = sys.argv[1:3], sys.argv[:1]
    unittest.main()
