"""A small schema with every kind of field, and two stages."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from pipeline.engine.config import make_schema
from pipeline.engine.context import View
from pipeline.engine.stage import Result, Stage


class Colour(Enum):
    """A field with few choices."""

    red = "red"
    green = "green"


@dataclass(kw_only=True)
class Wheel:
    """A nested part of a schema."""

    spokes: int = 8
    width_mm: float | None = None


@dataclass(kw_only=True)
class Work:
    """A stage's place in the schema's graph."""

    needs: list[str] = field(default_factory=list[str])


@dataclass(kw_only=True)
class Works:
    """The schema's graph."""

    stages: dict[str, Work] = field(default_factory=dict[str, Work])


@dataclass(kw_only=True)
class Bicycle:
    """A schema."""

    colour: Colour = Colour.red
    wheel: Wheel = field(default_factory=Wheel)
    spare: Wheel | None = None
    facts: dict[str, int] = field(default_factory=dict[str, int])
    pipeline: Works = field(default_factory=Works)


@dataclass(kw_only=True)
class Paint(Stage):
    """A stage with an option."""

    coats: int = 2

    def run(self, ctx: View) -> Result:
        return Result("")


@dataclass(kw_only=True)
class Dry(Stage):
    """A stage without options."""

    def run(self, ctx: View) -> Result:
        return Result("")


SCHEMA = make_schema(Bicycle, {"paint": Paint, "dry": Dry}, {})
