"""Bring every kernel that a recipe needs into its warm cache: discover, compile what the store lacks, publish."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pipeline.deepgemm.cache import PublishedKeys, publish, read_sources
from pipeline.deepgemm.compiler import Source
from pipeline.deepgemm.discovery import Discoverer
from pipeline.deepgemm.farm import Compiled, Farm
from pipeline.deepgemm.memo import RememberedDiscovery, discovery_digest, remembered
from pipeline.engine.events import Reporter
from pipeline.engine.host import require_writable
from pipeline.places import Places
from pipeline.servers.shared.problems import Problem

# A discovery of many problems gives fewer than this many kernels for each; it only sizes the disk check.
KERNELS_PER_PROBLEM = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Bake:
    """What one bake did."""

    discovery: RememberedDiscovery | None
    """The kernels of the rules' problems; None without such problems."""
    rules_sources: list[Source] | None
    """The sources of those kernels."""
    server_sources: list[Source] | None
    """The sources of the kernels that the server asked for; None when it was not asked."""
    compiled: Compiled
    published: PublishedKeys

    @property
    def sources(self) -> list[Source]:
        """Every kernel once."""
        return distinct([self.rules_sources or [], self.server_sources or []])


@dataclass(frozen=True, slots=True, kw_only=True)
class Baker:
    """Everything that a bake needs to know about this machine and this run."""

    discoverer: Discoverer
    farm: Farm
    places: Places
    on_progress: Reporter

    def bake(self, problems: Sequence[Problem], server_stubs: Path | None) -> Bake:
        """Discover the kernels of `problems`, add those of the private cache that a server filled, and publish all.

        A kernel that the compiler rejects is in `compiled.failed`; the others are published all the same.
        """
        discovery = self._discover(problems) if problems else None
        rules_stubs = None if discovery is None else discovery.stub_cache
        sources_of = {stubs: read_sources(stubs) for stubs in (rules_stubs, server_stubs) if stubs is not None}
        compiled = self._compile(distinct(sources_of.values()))
        return Bake(
            discovery=discovery,
            rules_sources=None if rules_stubs is None else sources_of[rules_stubs],
            server_sources=None if server_stubs is None else sources_of[server_stubs],
            compiled=compiled,
            published=self._publish(sources_of, compiled),
        )

    def require_room(self, num_problems: int, bytes_per_kernel: int) -> None:
        """HostError when store or output cannot be written to, or their disks are too full."""
        needed_bytes = bytes_per_kernel * KERNELS_PER_PROBLEM * num_problems
        require_writable(self.places.store, key="store.dir", needed_bytes=needed_bytes)
        require_writable(self.places.warm_cache, key="output.dir", needed_bytes=needed_bytes)

    def _discover(self, problems: Sequence[Problem]) -> RememberedDiscovery:
        on_progress = self.on_progress.counting("M launched")
        return remembered(
            self.places.store,
            discovery_digest(problems, self.discoverer),
            lambda stubs: self.discoverer.record(problems, stubs, on_progress),
        )

    def _compile(self, sources: Sequence[Source]) -> Compiled:
        def report(compiled: Compiled) -> None:
            self.on_progress("kernels", len(compiled.cubins) + len(compiled.failed), len(sources))

        return self.farm.compile(sources, report)

    def _publish(self, sources_of: dict[Path, list[Source]], compiled: Compiled) -> PublishedKeys:
        published = PublishedKeys()
        for stubs, sources in sources_of.items():
            cubins = {source.key: compiled.cubins[source.key] for source in sources if source.key in compiled.cubins}
            published.extend(publish(stubs, cubins, self.places.warm_cache, toolkit=self.farm.toolkit, sm=self.farm.sm))
        return published


def distinct(lists: Iterable[Sequence[Source]]) -> list[Source]:
    """Every kernel once, in order of first appearance."""
    return list({source.key: source for sources in lists for source in sources}.values())
