"""What an SGLang rule may look at."""

from __future__ import annotations

from pipeline.servers.rules import Deployment
from pipeline.servers.sglang.flags import SglangFlags

SglangDeployment = Deployment[SglangFlags]
