"""The commands: each asks the repository, and gives what to print."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any

from icefloe.cli.progress import bar
from icefloe.cli.wording import one_line, spoken
from icefloe.clock import to_datetime
from icefloe.format.status import Availability
from icefloe.format.updates import UpdateKind

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Callable

    from icefloe.format.updates import Update
    from icefloe.repository import Repository


@dataclass(frozen=True, slots=True)
class Answer:
    """The same thing for people and for programs."""

    lines: list[str]
    data: Any
    failed: bool = False


def _log(repo: Repository, args: Namespace) -> Answer:
    found = [*islice(repo.ancestry(branch=args.branch), args.count)]
    lines = [f"{it.id}  {it.written_at:%Y-%m-%d %H:%M:%S}  {one_line(it.message)}" for it in found]
    return Answer(lines, [{**asdict(it), "written_at": it.written_at.isoformat()} for it in found])


def _graph(repo: Repository, args: Namespace) -> Answer:
    text = repo.ancestry_graph(limit=args.count)
    # Not splitlines: a message may have other separators of lines in it.
    return Answer(text.split("\n"), text)


def _refs(repo: Repository, args: Namespace) -> Answer:
    data = {
        "branches": {name: repo.lookup_branch(name) for name in sorted(repo.list_branches())},
        "tags": {name: repo.lookup_tag(name) for name in sorted(repo.list_tags())},
    }
    lines = [f"{it}  branch  {name}" for name, it in data["branches"].items()]
    lines += [f"{it}  tag     {name}" for name, it in data["tags"].items()]
    return Answer(lines, data)


def _ops(repo: Repository, args: Namespace) -> Answer:
    def told(update: Update) -> dict[str, Any]:
        kind = update.kind
        known = kind.name.lower() if isinstance(kind, UpdateKind) else f"unknown {kind}"
        return {
            "kind": known,
            "at": to_datetime(update.updated_at).isoformat(timespec="seconds"),
            "name": update.name,
            "snapshot": None if update.new_snap_id is None else str(update.new_snap_id),
        }

    data = [told(update) for update in islice(repo.ops_log(), args.count)]
    lines = [f"{it['at']}  {it['kind'].replace('_', ' '):<22} {it['name'] or ''}" for it in data]
    return Answer([line.rstrip() for line in lines], data)


def _stats(repo: Repository, args: Namespace) -> Answer:
    found = repo.chunk_storage_stats(args.by)
    heads = ("native", "inline", "virtual", "exclusive")
    rows = [
        (it.native_bytes, it.inlined_bytes, it.virtual_bytes, it.exclusive_bytes, it.name or "all")
        for it in found
    ]
    lines = ["".join(f"{head:>12}" for head in heads)]
    lines += ["".join(f"{size(n):>12}" for n in row[:4]) + f"  {row[4]}" for row in rows]
    return Answer(lines, [asdict(it) for it in found])


def _verify(repo: Repository, args: Namespace) -> Answer:
    with bar() as progress:
        findings = repo.verify(args.level, progress=progress)
    lines = [f"{it.severity}: {it.file}: {spoken(it.message)}; {it.what_to_do}" for it in findings]
    failed = any(it.severity == "error" for it in findings)
    return Answer(lines or ["nothing is wrong"], [asdict(it) for it in findings], failed)


def _expire(repo: Repository, args: Namespace) -> Answer:
    result = repo.expire_snapshots(
        args.older_than,
        keep_last=args.keep_last,
        delete_expired_branches=args.delete_branches,
        delete_expired_tags=args.delete_tags,
        branches=args.branches,
        dry_run=args.dry_run,
    )
    data = {
        "released_snapshots": sorted(result.released_snapshots),
        "deleted_branches": sorted(result.deleted_branches),
        "deleted_tags": sorted(result.deleted_tags),
        "dry_run": args.dry_run,
    }
    lines = [f"{_verb(args, 'released')} {len(data['released_snapshots'])} snapshots"]
    lines += [
        f"{_verb(args, 'deleted')} {name}: {', '.join(gone)}"
        for name in ("branches", "tags")
        if (gone := data[f"deleted_{name}"])
    ]
    return Answer(lines, data)


def _gc(repo: Repository, args: Namespace) -> Answer:
    with bar() as progress:
        result = repo.garbage_collect(
            args.older_than, dry_run=args.dry_run, force=args.force, progress=progress
        )
    lines = [
        f"{_verb(args, 'deleted')} {result.snapshots_deleted} snapshots, "
        f"{result.transaction_logs_deleted} transaction logs, {result.manifests_deleted} manifests "
        f"and {result.chunks_deleted} chunks: {size(result.bytes_deleted)}"
    ]
    lines += [f"error: {text}" for text in result.delete_errors]
    if result.skipped_phases:
        lines.append(f"left to the next run: {', '.join(result.skipped_phases)}")
    return Answer(lines, asdict(result), failed=result.objects_failed_to_delete > 0)


def _trim(repo: Repository, args: Namespace) -> Answer:
    result = repo.trim_ops_log(keep=args.keep, dry_run=args.dry_run)
    line = (
        f"{_verb(args, 'deleted')} {result.backups_deleted} backups: {size(result.bytes_deleted)}; "
        f"{result.operations_kept} operations stay listed"
    )
    data = {**asdict(result), "failures": dict(result.failures)}
    return Answer([line], data, failed=bool(result.failures))


def _rewrite(repo: Repository, args: Namespace) -> Answer:
    found = repo.rewrite_manifests(
        args.message,
        branch=args.branch,
        commit_method="amend" if args.amend else "new_commit",
    )
    return Answer([found], {"snapshot_id": found})


def _repack(repo: Repository, args: Namespace) -> Answer:
    result = repo.repack(args.branch, args.arrays)
    if result.snapshot_id is None:
        return Answer(["there are no small objects to pack"], asdict(result))
    line = (
        f"{result.snapshot_id}  {result.chunks} chunks ({size(result.bytes)}) moved from "
        f"{result.objects_before} objects to {result.objects_after}"
    )
    return Answer([line], asdict(result))


def _status(repo: Repository, args: Namespace) -> Answer:
    if args.availability is not None:
        wanted = Availability[args.availability.upper().replace("-", "_")]
        repo.set_status(wanted, args.reason)
    status = repo.get_status()
    known = status.availability
    name = known.name.lower().replace("_", "-") if isinstance(known, Availability) else str(known)
    line = f"{name} since {to_datetime(status.set_at):%Y-%m-%d %H:%M:%S}"
    line += f": {status.reason}" if status.reason else ""
    since = to_datetime(status.set_at).isoformat(timespec="seconds")
    return Answer([line], {"availability": name, "reason": status.reason, "since": since})


COMMANDS: dict[str, Callable[[Repository, Namespace], Answer]] = {
    "log": _log,
    "graph": _graph,
    "refs": _refs,
    "ops": _ops,
    "stats": _stats,
    "verify": _verify,
    "expire": _expire,
    "gc": _gc,
    "trim": _trim,
    "rewrite-manifests": _rewrite,
    "repack": _repack,
    "status": _status,
}


def _verb(args: Namespace, verb: str) -> str:
    return f"would have {verb}" if args.dry_run else verb


def size(count: float) -> str:
    """Bytes in words."""
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if count < 1024 or unit == "TiB":
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    raise AssertionError("the last unit takes everything")
