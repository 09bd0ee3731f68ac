from __future__ import annotations

from typing import AsyncIterator, List, Optional, Sequence

import grpc
import grpc.aio

from . import _requests as requests
from ._proto.tessera.v1 import control_pb2, control_pb2_grpc, inference_pb2, inference_pb2_grpc


class AsyncClient:
    """The methods of Client, for asyncio. Made and used within one event loop."""

    def __init__(self, address: Optional[str] = None, *, api_key: Optional[str] = None, tls: bool = False,
                 tls_ca: Optional[str] = None, tls_cert: Optional[str] = None, tls_key: Optional[str] = None,
                 max_attempts: int = 5):
        target, options = requests.address_of(address), requests.channel_options(max_attempts)
        credentials = requests.credentials_of(tls, tls_ca, tls_cert, tls_key)
        self.channel = (grpc.aio.secure_channel(target, credentials, options=options) if credentials
                        else grpc.aio.insecure_channel(target, options=options))
        self.inference = inference_pb2_grpc.InferenceStub(self.channel)
        self.control = control_pb2_grpc.ControlStub(self.channel)
        self._metadata = requests.metadata_of(api_key)

    async def close(self) -> None:
        await self.channel.close()

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *exc) -> None:
        await self.close()

    async def stream_events(self, request: inference_pb2.GenerateRequest,
                            deadline: Optional[float] = None) -> AsyncIterator[inference_pb2.GenerateResponse]:
        call = self.inference.Generate(request, timeout=deadline, metadata=self._metadata)
        try:
            async for event in call:
                yield event
        finally:
            call.cancel()

    async def stream(self, prompt=None, *, deadline: Optional[float] = None, **arguments) -> AsyncIterator[str]:
        request = requests.generate_request(prompt, **arguments)
        events = self.stream_events(request, deadline)
        try:
            async for event in events:
                if event.HasField("delta") and event.delta.index == 0 and event.delta.text:
                    yield event.delta.text
        finally:
            await events.aclose()

    async def generate(self, prompt=None, *, deadline: Optional[float] = None, **arguments) -> requests.Generation:
        request = requests.generate_request(prompt, **arguments)
        return requests.generation_of(
            await self.inference.GenerateOnce(request, timeout=deadline, metadata=self._metadata))

    async def embed(self, inputs: Sequence, *, deadline: Optional[float] = None, **arguments) -> List[List[float]]:
        request = requests.embed_request(inputs, **arguments)
        return requests.vectors_of(await self.inference.Embed(request, timeout=deadline, metadata=self._metadata))

    async def tokenize(self, prompt=None, *, chat=None, system=None, deadline: Optional[float] = None,
                       **fields) -> List[int]:
        request = inference_pb2.TokenizeRequest(prompt=requests.prompt_of(prompt, chat, system), **fields)
        return list((await self.inference.Tokenize(request, timeout=deadline, metadata=self._metadata)).token_ids)

    async def detokenize(self, token_ids: Sequence[int], *, deadline: Optional[float] = None, **fields) -> str:
        request = inference_pb2.DetokenizeRequest(token_ids=token_ids, **fields)
        return (await self.inference.Detokenize(request, timeout=deadline, metadata=self._metadata)).text

    async def model_info(self, deadline: Optional[float] = 10) -> control_pb2.ModelInfo:
        return await self.control.GetModelInfo(control_pb2.GetModelInfoRequest(), timeout=deadline,
                                               metadata=self._metadata)

    async def server_info(self, deadline: Optional[float] = 10) -> control_pb2.ServerInfo:
        return await self.control.GetServerInfo(control_pb2.GetServerInfoRequest(), timeout=deadline,
                                                metadata=self._metadata)

    async def load(self, deadline: Optional[float] = 10) -> control_pb2.Load:
        return await self.control.GetLoad(control_pb2.GetLoadRequest(), timeout=deadline, metadata=self._metadata)

    async def abort(self, *request_ids: str, deadline: Optional[float] = 10) -> control_pb2.AbortResponse:
        return await self.control.Abort(control_pb2.AbortRequest(request_ids=request_ids), timeout=deadline,
                                        metadata=self._metadata)
