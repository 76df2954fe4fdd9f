"""Reading what a metrics endpoint says, with prometheus-client's own parser."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

Samples = Mapping[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: str) -> Samples:
    """Value by name and labels."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(text: str, name: str, **labels: str) -> float:
    """Of one time series; 0 where there is none, as Prometheus counts."""
    return samples(text).get((name, frozenset(labels.items())), 0.0)


def assert_conventional(text: str) -> None:
    """Names as https://prometheus.io/docs/practices/naming/ wants them: base units, `_total`, a help text."""
    families = [family for family in text_string_to_metric_families(text) if family.name.startswith("omnivoice_")]
    assert families
    for family in families:
        assert family.documentation, family.name
        assert not family.name.endswith(("_ms", "_milliseconds", "_count", "_sum", "_bucket", "_total")), family.name
        assert family.type in ("counter", "gauge", "histogram"), family.name
        for sample in family.samples:
            assert (family.type == "counter") == sample.name.endswith(("_total",)), sample.name
