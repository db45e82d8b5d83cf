"""Numbers with units: Prometheus text for a role's /metrics, names as `role/what_unit`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

__all__ = ["flatten", "prometheus_text"]


def flatten(numbers: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield ``name, value`` of every number in nested mappings; a key below becomes a part."""
    for key, value in numbers.items():
        name = f"{prefix}/{key}" if prefix else str(key)
        if isinstance(value, Mapping):
            yield from flatten(value, name)
        elif isinstance(value, int | float):
            yield name, float(value)


def prometheus_text(role: str, numbers: Mapping[str, Any]) -> str:
    """
    Write numbers in Prometheus' exposition format 0.0.4.

    Nested mappings become one label, ``key``: ``dropped: {stale: 3}`` is
    ``astraflow_dataflow_dropped{key="stale"} 3``.
    """
    from prometheus_client import CollectorRegistry, Metric, generate_latest

    class Snapshot:
        def collect(self) -> Iterable[Metric]:
            yield from _families(role, numbers)

    registry = CollectorRegistry()
    registry.register(Snapshot())
    return generate_latest(registry).decode()


def _families(role: str, numbers: Mapping[str, Any]) -> Iterator[Any]:
    from prometheus_client.core import GaugeMetricFamily

    for name, value in numbers.items():
        metric = f"astraflow_{role}_{name}"
        if isinstance(value, Mapping):
            family = GaugeMetricFamily(metric, name, labels=["key"])
            for key, number in flatten(value):
                family.add_metric([key], number)
            yield family
        elif isinstance(value, int | float):
            yield GaugeMetricFamily(metric, name, value=float(value))
