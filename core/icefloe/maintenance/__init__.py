"""Keeping repositories small, healthy and explainable."""

from icefloe.maintenance.expire import ExpireResult, Retention, expire_snapshots
from icefloe.maintenance.gc import CONCURRENCY, SAFETY_FLOOR, GCSummary, garbage_collect
from icefloe.maintenance.marks import MAX_MEMORY_BYTES
from icefloe.maintenance.ops_log import MIN_OPERATIONS, TrimResult, trim_ops_log
from icefloe.maintenance.progress import Progress, Report
from icefloe.maintenance.stats import StorageStats, chunk_storage_stats
from icefloe.maintenance.verification.findings import Finding
from icefloe.maintenance.verify import verify

__all__ = [
    "CONCURRENCY",
    "MAX_MEMORY_BYTES",
    "MIN_OPERATIONS",
    "SAFETY_FLOOR",
    "ExpireResult",
    "Finding",
    "GCSummary",
    "Progress",
    "Report",
    "Retention",
    "StorageStats",
    "TrimResult",
    "chunk_storage_stats",
    "expire_snapshots",
    "garbage_collect",
    "trim_ops_log",
    "verify",
]
