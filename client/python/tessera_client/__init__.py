"""Client for a Tessera server, synchronous and asyncio."""
from ._aio import AsyncClient
from ._proto.tessera.v1 import control_pb2 as control
from ._proto.tessera.v1 import inference_pb2 as inference
from ._proto.tessera.v1 import types_pb2 as types
from ._requests import Generation
from ._sync import Client

__all__ = ["AsyncClient", "Client", "Generation", "control", "inference", "types"]
