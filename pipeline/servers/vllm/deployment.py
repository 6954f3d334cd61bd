"""What a vLLM rule may look at."""

from __future__ import annotations

from pipeline.servers.rules import Deployment
from pipeline.servers.vllm.flags import VllmFlags

VllmDeployment = Deployment[VllmFlags]
