from __future__ import annotations

from typing import Iterator, List, Optional, Sequence

import grpc

from . import _requests as requests
from ._proto.tessera.v1 import control_pb2, control_pb2_grpc, inference_pb2, inference_pb2_grpc


class Client:
    """Thread-safe; one connection for all its calls."""

    def __init__(self, address: Optional[str] = None, *, api_key: Optional[str] = None, tls: bool = False,
                 tls_ca: Optional[str] = None, tls_cert: Optional[str] = None, tls_key: Optional[str] = None,
                 max_attempts: int = 5):
        target, options = requests.address_of(address), requests.channel_options(max_attempts)
        credentials = requests.credentials_of(tls, tls_ca, tls_cert, tls_key)
        self.channel = (grpc.secure_channel(target, credentials, options=options) if credentials
                        else grpc.insecure_channel(target, options=options))
        self.inference = inference_pb2_grpc.InferenceStub(self.channel)
        self.control = control_pb2_grpc.ControlStub(self.channel)
        self._metadata = requests.metadata_of(api_key)

    def close(self) -> None:
        self.channel.close()

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *exc) -> None:
        self.close()

    def stream_events(self, request: inference_pb2.GenerateRequest,
                      deadline: Optional[float] = None) -> Iterator[inference_pb2.GenerateResponse]:
        """Every event of a Generate call. `deadline` in seconds ends the call with DEADLINE_EXCEEDED."""
        call = self.inference.Generate(request, timeout=deadline, metadata=self._metadata)
        try:
            yield from call
        finally:
            call.cancel()

    def stream(self, prompt=None, *, deadline: Optional[float] = None, **arguments) -> Iterator[str]:
        """The text of output 0 as it is made. Arguments: those of `generate`."""
        request = requests.generate_request(prompt, **arguments)
        for event in self.stream_events(request, deadline):
            if event.HasField("delta") and event.delta.index == 0 and event.delta.text:
                yield event.delta.text

    def generate(self, prompt=None, *, deadline: Optional[float] = None, **arguments) -> requests.Generation:
        """The whole answer. `prompt`: text, token ids or a Prompt; or `chat`: (role, content) pairs, with `system`.

        Further arguments: max_tokens, min_tokens, stop, stop_token_ids, include_stop, ignore_eos, temperature, top_k,
        top_p, min_p, seed, presence_penalty, frequency_penalty, repetition_penalty, logit_bias, n, priority, logprobs,
        prompt_logprobs, timeout (seconds, kept by the server), request_id, model, cache_salt, bypass_prefix_cache,
        return_token_ids, return_prompt_token_ids, skip_special_tokens. Their meaning is in proto/tessera/v1.
        """
        request = requests.generate_request(prompt, **arguments)
        return requests.generation_of(
            self.inference.GenerateOnce(request, timeout=deadline, metadata=self._metadata))

    def embed(self, inputs: Sequence, *, deadline: Optional[float] = None, **arguments) -> List[List[float]]:
        """A vector for each input. Arguments: pooling ("last", "mean", "cls"), normalize, truncate, model, priority."""
        request = requests.embed_request(inputs, **arguments)
        return requests.vectors_of(self.inference.Embed(request, timeout=deadline, metadata=self._metadata))

    def tokenize(self, prompt=None, *, chat=None, system=None, deadline: Optional[float] = None, **fields) -> List[int]:
        request = inference_pb2.TokenizeRequest(prompt=requests.prompt_of(prompt, chat, system), **fields)
        return list(self.inference.Tokenize(request, timeout=deadline, metadata=self._metadata).token_ids)

    def detokenize(self, token_ids: Sequence[int], *, deadline: Optional[float] = None, **fields) -> str:
        request = inference_pb2.DetokenizeRequest(token_ids=token_ids, **fields)
        return self.inference.Detokenize(request, timeout=deadline, metadata=self._metadata).text

    def model_info(self, deadline: Optional[float] = 10) -> control_pb2.ModelInfo:
        return self.control.GetModelInfo(control_pb2.GetModelInfoRequest(), timeout=deadline, metadata=self._metadata)

    def server_info(self, deadline: Optional[float] = 10) -> control_pb2.ServerInfo:
        return self.control.GetServerInfo(control_pb2.GetServerInfoRequest(), timeout=deadline,
                                          metadata=self._metadata)

    def load(self, deadline: Optional[float] = 10) -> control_pb2.Load:
        return self.control.GetLoad(control_pb2.GetLoadRequest(), timeout=deadline, metadata=self._metadata)

    def abort(self, *request_ids: str, deadline: Optional[float] = 10) -> control_pb2.AbortResponse:
        return self.control.Abort(control_pb2.AbortRequest(request_ids=request_ids), timeout=deadline,
                                  metadata=self._metadata)
