"""What the two clients share: building requests, channel options, and plain results."""
from __future__ import annotations

import dataclasses
import json
import os
from typing import Any, Iterable, Mapping, Optional, Sequence, Tuple, Union

import grpc

from ._proto.tessera.v1 import inference_pb2, types_pb2

PromptLike = Union[str, Sequence[int], types_pb2.Prompt]
ChatLike = Iterable[Union[Tuple[str, str], Mapping[str, str]]]

DEFAULT_ADDRESS = "127.0.0.1:50051"
_MAX_RECEIVE_BYTES = 256 << 20
_RETRYABLE = ["UNAVAILABLE", "RESOURCE_EXHAUSTED"]
_POOLING = {None: 0, "last": 1, "mean": 2, "cls": 3}
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "seed", "presence_penalty", "frequency_penalty",
             "repetition_penalty")
_STOPPING = ("max_tokens", "min_tokens", "include_stop", "ignore_eos")
_REQUEST = ("n", "priority", "logprobs", "prompt_logprobs", "request_id", "model", "cache_salt", "bypass_prefix_cache",
            "return_token_ids", "return_prompt_token_ids", "skip_special_tokens")


@dataclasses.dataclass(frozen=True)
class Generation:
    """One output of a generation."""
    text: str
    finish_reason: str  # "stop", "length", "abort", "deadline", "error"
    usage: types_pb2.Usage
    request_id: str
    seed: int
    outputs: Tuple[inference_pb2.Output, ...]  # all of them, with token ids and log-probabilities if asked for


def address_of(address: Optional[str]) -> str:
    return address or os.environ.get("TESSERA_ADDRESS") or DEFAULT_ADDRESS


def channel_options(max_attempts: int):
    policy = {"maxAttempts": max_attempts, "initialBackoff": "0.1s", "maxBackoff": "5s", "backoffMultiplier": 2,
              "retryableStatusCodes": _RETRYABLE}
    config = {"loadBalancingConfig": [{"round_robin": {}}], "methodConfig": [{"name": [{}]}]}
    if max_attempts > 1:
        config["methodConfig"][0]["retryPolicy"] = policy
    return [("grpc.service_config", json.dumps(config)), ("grpc.enable_retries", 1),
            ("grpc.max_receive_message_length", _MAX_RECEIVE_BYTES), ("grpc.keepalive_time_ms", 30000),
            ("grpc.keepalive_timeout_ms", 10000), ("grpc.http2.max_pings_without_data", 0),
            ("grpc.initial_reconnect_backoff_ms", 100), ("grpc.max_reconnect_backoff_ms", 5000)]


def credentials_of(tls: bool, ca: Optional[str], cert: Optional[str], key: Optional[str]):
    """None for a connection without TLS."""
    if not (tls or ca or cert or key):
        return None
    if bool(cert) != bool(key):
        raise ValueError("a client certificate takes both its certificate file and its key file")

    def read(path):
        if path is None:
            return None
        with open(path, "rb") as file:
            return file.read()

    return grpc.ssl_channel_credentials(read(ca), read(key), read(cert))


def metadata_of(api_key: Optional[str]):
    key = api_key if api_key is not None else os.environ.get("TESSERA_API_KEY")
    return (("authorization", f"Bearer {key}"),) if key else ()


def prompt_of(prompt: Optional[PromptLike], chat: Optional[ChatLike] = None, system: Optional[str] = None):
    if (prompt is None) == (chat is None):
        raise ValueError("give either a prompt or a chat")
    if isinstance(prompt, types_pb2.Prompt):
        return prompt
    message = types_pb2.Prompt()
    if chat is not None:
        if system is not None:
            message.chat.messages.add(role="system", content=system)
        for turn in chat:
            role, content = (turn["role"], turn["content"]) if isinstance(turn, Mapping) else turn
            message.chat.messages.add(role=role, content=content)
    elif isinstance(prompt, str):
        message.text = prompt
    else:
        message.token_ids.ids.extend(prompt)
    return message


def generate_request(prompt=None, *, chat=None, system=None, stop=(), stop_token_ids=(), logit_bias=None, timeout=None,
                     **fields: Any) -> inference_pb2.GenerateRequest:
    request = inference_pb2.GenerateRequest(prompt=prompt_of(prompt, chat, system))
    for name, value in fields.items():
        if value is None:
            continue
        if name in _SAMPLING:
            setattr(request.sampling, name, value)
        elif name in _STOPPING:
            setattr(request.stopping, name, value)
        elif name in _REQUEST:
            setattr(request, name, value)
        else:
            raise TypeError(f"unknown argument '{name}'")
    request.stopping.stop_strings.extend([stop] if isinstance(stop, str) else stop)
    request.stopping.stop_token_ids.extend(stop_token_ids)
    for token, bias in (logit_bias or {}).items():
        request.sampling.logit_bias[token] = bias
    if timeout is not None:
        request.timeout.FromNanoseconds(int(timeout * 1e9))
    return request


def generation_of(response: inference_pb2.GenerateOnceResponse) -> Generation:
    first = response.outputs[0]
    reason = types_pb2.FinishReason.Name(first.finished.reason)
    return Generation(text=first.text, finish_reason=reason[len("FINISH_REASON_"):].lower(), usage=response.usage,
                      request_id=response.request_id, seed=response.seed, outputs=tuple(response.outputs))


def embed_request(inputs, *, pooling=None, normalize=None, truncate=False, model="", priority=0, request_id=""):
    if pooling not in _POOLING:
        raise ValueError(f"pooling: got {pooling!r}; expected 'last', 'mean' or 'cls'")
    request = inference_pb2.EmbedRequest(pooling=_POOLING[pooling], truncate=truncate, model=model, priority=priority,
                                         request_id=request_id)
    if normalize is not None:
        request.normalize = normalize
    request.inputs.extend(prompt_of(one) for one in inputs)
    return request


def vectors_of(response: inference_pb2.EmbedResponse):
    return [list(embedding.values) for embedding in response.embeddings]
