"""OpenLineage datasets, whose version is the snapshot."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_icechunk.reports import SnapshotReport


def dataset(url: str, *, path: str = "/", snapshot_id: str | None = None) -> Any:
    """The dataset at a URL: the namespace is the bucket, as in Spark's own events.

    :param url: of the repository.
    :param path: of an array or group.
    :param snapshot_id: the version.
    """
    # Not everyone installs OpenLineage.
    generated = "openlineage.client.generated"
    client = import_module("openlineage.client.event_v2")
    scheme, _, place = url.partition("://")
    bucket, _, prefix = place.partition("/")
    is_local = scheme == "file" or not place
    namespace = "file" if is_local else f"{scheme}://{bucket}"
    root = f"/{(place or url).strip('/')}" if is_local else prefix
    facets = {}
    if snapshot_id is not None:
        version = import_module(f"{generated}.dataset_version_dataset")
        facets["version"] = version.DatasetVersionDatasetFacet(datasetVersion=snapshot_id)
    name = "/".join(part for part in (root.rstrip("/"), path.strip("/")) if part)
    return client.Dataset(namespace=namespace, name=name or "/", facets=facets)


def operator_lineage(report: SnapshotReport | None) -> Any | None:
    """What an operator tells OpenLineage once it is done; None where OpenLineage is not there."""
    if report is None:
        return None
    try:
        extractors = import_module("airflow.providers.openlineage.extractors")
        written = dataset(report.repo, snapshot_id=report.snapshot_id)
    except ImportError:
        return None
    return extractors.OperatorLineage(outputs=[written])
