"""The name of an answer: a digest of everything that decides what the server asks for."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path

from pipeline.deepgemm.discovery import STAND_IN
from pipeline.deepgemm.store import tree_digest
from pipeline.servers.shared.inquiry import Inquiry

STAND_INS = Path(__file__).parent / "stand_ins"


def answer_digest(inquiry: Inquiry, environment: Mapping[str, str] = os.environ) -> str:
    """32 hexadecimal digits; where the checkpoint lies does not enter, what it holds does."""
    starter = inquiry.starter
    prefix = starter.askable.variable_prefix
    own_variables = {name: value for name, value in environment.items() if name.startswith(prefix)}
    arguments = {
        name: [word for word in words if word != str(inquiry.checkpoint)] for name, words in inquiry.variants.items()
    }
    parts = (
        json.dumps(arguments),
        tree_digest(str(inquiry.checkpoint)),
        json.dumps(starter.server.versions, sort_keys=True),
        json.dumps(starter.gpu.environment(), sort_keys=True),
        json.dumps(own_variables | dict(inquiry.variables), sort_keys=True),
        starter.toolkit.version_text,
        STAND_IN.read_text(),
        tree_digest(str(STAND_INS)),
        tree_digest(str(starter.askable.script.parent)),
    )
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
