"""The servers, by the name that a recipe gives."""

from __future__ import annotations

from pipeline.servers.protocol import SupportedServer
from pipeline.servers.sglang.server import Sglang
from pipeline.servers.vllm.server import Vllm

SERVERS: dict[str, SupportedServer] = {"sglang": Sglang(), "vllm": Vllm()}
