"""Upkeep of a repository: expire, collect, verify, measure, trim, rewrite, repack."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from icefloe import maintenance, rewriting
from icefloe.clock import parse_time
from icefloe.descriptions import check_message, check_metadata
from icefloe.format.ids import SnapshotId
from icefloe.manifest_writing import ManifestWriter
from icefloe.registering import Registrar
from icefloe.repo_object import RepoObject
from icefloe.rewriting import Repacker
from icefloe.twins import twin

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from datetime import timedelta

    from icefloe.clock import Moment
    from icefloe.format.metadata import Json
    from icefloe.maintenance import (
        ExpireResult,
        Finding,
        GCSummary,
        Report,
        Retention,
        StorageStats,
        TrimResult,
    )
    from icefloe.publication import Publication
    from icefloe.rewriting import RepackSummary


class Upkeep(RepoObject):
    """What keeps a repository small, healthy and explainable; see `icefloe.maintenance`."""

    def register(self, publication: Publication) -> SnapshotId:
        """Register a written snapshot; see `session.Publisher`."""
        registrar = Registrar(publication)
        self.update(registrar, prepared=publication.prepared, ready=publication.written)
        return registrar.registered

    def expire_snapshots(
        self,
        older_than: Moment,
        *,
        keep_last: int | None = None,
        delete_expired_branches: bool = False,
        delete_expired_tags: bool = False,
        branches: Collection[str] | Mapping[str, Retention] | None = None,
        dry_run: bool = False,
    ) -> ExpireResult:
        """Let go of every snapshot written before a time; garbage collection then frees its space.

        Tips of branches and tags stay, and so does the first snapshot.

        Args:
            older_than: the bound, exclusive; naive times are local.
            keep_last: how many snapshots every branch keeps at least.
            delete_expired_branches: delete branches whose tip is older; never main.
            delete_expired_tags: delete tags whose snapshot is older; their names stay taken.
            branches: expire these alone; or, for each, a `Retention` of its own.
            dry_run: change nothing.
        """
        return maintenance.expire_snapshots(
            self._assets,
            parse_time(older_than, "older_than", naive=None),
            keep_last=keep_last,
            delete_expired_branches=delete_expired_branches,
            delete_expired_tags=delete_expired_tags,
            branches=branches,
            dry_run=dry_run,
            updates_per_file=self._settings.num_updates_per_repo_info_file,
        )

    def garbage_collect(
        self,
        delete_object_older_than: Moment,
        *,
        dry_run: bool = False,
        force: bool = False,
        safety_floor: timedelta = maintenance.SAFETY_FLOOR,
        max_memory_bytes: int = maintenance.MAX_MEMORY_BYTES,
        concurrency: int = maintenance.CONCURRENCY,
        progress: Report | None = None,
    ) -> GCSummary:
        """Delete all objects written before a time that no branch, tag or younger snapshot needs.

        A session that is not yet committed may lose chunks that it uploaded before the cutoff:
        choose one older than the longest session.

        Args:
            delete_object_older_than: the bound, exclusive, by the store's clock; naive times are
                local.
            dry_run: report, but change nothing.
            force: accept a cutoff younger than `safety_floor`.
            safety_floor: how old a cutoff must be.
            max_memory_bytes: about how much the ids of live chunks may take.
            concurrency: how many prefixes to list at a time.
            progress: is told, often, how far the run is.
        """
        return maintenance.garbage_collect(
            self._assets,
            parse_time(delete_object_older_than, "delete_object_older_than", naive=None),
            dry_run=dry_run,
            force=force,
            safety_floor=safety_floor,
            max_memory_bytes=max_memory_bytes,
            concurrency=concurrency,
            progress=progress,
            updates_per_file=self._settings.num_updates_per_repo_info_file,
        )

    def trim_ops_log(
        self, *, keep: int | timedelta = maintenance.MIN_OPERATIONS, dry_run: bool = False
    ) -> TrimResult:
        """Delete backups of the repo object that only operations older than `keep` need.

        Every change of a repository leaves a copy of the repo object, and no official client ever
        deletes one. The last 1,000 operations always stay listed.

        Args:
            keep: how many of the latest operations to keep, or how old ones.
            dry_run: delete nothing.
        """
        return maintenance.trim_ops_log(self._assets, keep=keep, dry_run=dry_run)

    def verify(
        self,
        level: Literal["metadata", "objects", "data"] = "metadata",
        *,
        progress: Report | None = None,
    ) -> list[Finding]:
        """All that is wrong with the repository; nothing, if all is well.

        Args:
            level: `metadata` reads all metadata files; `objects` also compares all references with
                the chunk objects; `data` also reads and decodes every chunk but virtual ones, which
                needs the extra `zarr`.
            progress: is told, often, how far it is.
        """
        decode = None
        if level == "data":
            # zarr is optional and lives above this layer.
            from icefloe.chunk_decoding import decode_chunk

            decode = decode_chunk
        return [*maintenance.verify(self._assets, level, decode_chunk=decode, progress=progress)]

    def chunk_storage_stats(
        self, by: Literal["repository", "array", "snapshot", "branch"] = "repository"
    ) -> tuple[StorageStats, ...]:
        """How many bytes of chunks there are, and who needs them.

        Of a snapshot, `exclusive_bytes` is what would be freed if it alone were expired.
        """
        return maintenance.chunk_storage_stats(self._assets, by)

    def rewrite_manifests(
        self,
        message: str,
        *,
        branch: str,
        metadata: Mapping[str, Json] | None = None,
        commit_method: Literal["new_commit", "amend"] = "new_commit",
    ) -> str:
        """Cut the manifests of a branch's tip as the configuration says now; the new tip's id.

        Values stay as they are, and manifests that fit already are kept.
        """
        said = check_metadata(metadata)
        writer = ManifestWriter(self._assets, self._config)
        return rewriting.commit(
            self._assets,
            self,
            branch,
            check_message(message),
            {**said, **rewriting.split_metadata(self._config)},
            rewriter=lambda tip: rewriting.resplit(tip, writer),
            writer=writer,
            amend=commit_method == "amend",
        )

    def repack(
        self,
        branch: str,
        arrays: Collection[str] | None = None,
        *,
        message: str = "Repack small chunks",
        metadata: Mapping[str, Json] | None = None,
    ) -> RepackSummary:
        """Move chunks from small objects into packs, as a commit that changes no value.

        The old objects go with the next garbage collection that finds them unused.

        Args:
            branch: whose tip is repacked.
            arrays: paths; None means all.
            message: of the commit.
            metadata: any JSON, kept with the commit.
        """
        check_message(message)
        said = check_metadata(metadata)
        writer = ManifestWriter(self._assets, self._config)
        repacker = Repacker(
            self._assets,
            max_chunk_bytes=self._settings.packing_max_chunk_bytes,
            target_bytes=self._settings.packing_target_bytes,
        )
        tip = self._assets.snapshot(SnapshotId.parse(self.lookup_branch(branch)))
        if not repacker.view(tip, arrays).changes:
            return repacker.summary
        snapshot_id = rewriting.commit(
            self._assets,
            self,
            branch,
            message,
            said,
            rewriter=lambda tip: writer.apply(repacker.view(tip, arrays)),
            writer=writer,
        )
        return replace(repacker.summary, snapshot_id=snapshot_id)

    chunk_storage_stats_async = twin(chunk_storage_stats)
    expire_snapshots_async = twin(expire_snapshots)
    garbage_collect_async = twin(garbage_collect)
    repack_async = twin(repack)
    rewrite_manifests_async = twin(rewrite_manifests)
    trim_ops_log_async = twin(trim_ops_log)
    verify_async = twin(verify)
