"""Hostile bytes: damaged metadata files must be refused with a FormatError, or read well.

    python tests/fuzz_format.py --count 20000 --seed 1

The files come from the official library and from icefloe, small and medium. What decodes must be
usable: every accessor answers, the value equals itself, and it encodes again or says why not.
"""

import argparse
import resource
import shutil
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from icefloe.errors import FormatError, InvalidInputError
from icefloe.format import header, lookup, manifest, repo_info, snapshot, transaction_log, wire
from icefloe.format.chunk_refs import ChunkRef, ChunkRefs
from icefloe.format.header import FileType
from icefloe.format.ids import INITIAL_SNAPSHOT_ID, ManifestId, NodeId
from icefloe.format.ragged import Ragged
from icefloe.format.transaction_log import TransactionLog
from mutations import MUTATIONS, RARE_BOMBS, Sample, bomb, steering_places
from official_repos import KINDS, ArrayPlan, RepositoryPlan, build

MAX_SECONDS = 1.0
MAX_MEMORY = 512 * 2**20
NAME = "some/file"
CORPUS = Path(__file__).parent / "corpus"
METADATA = {
    "nested": {"a": [{"é": [1, -2, 2**63]}, {"é": "x" * 300}], "b": {"c": None, "": [[], {}]}},
    "vectors": [[1, 2], [1.5, 2.5, 3.5], [True, False], list(range(1000)), [-1] * 5, ["a", "b"]],
    "numbers": [2**64 - 1, -(2**63), 1e300, 0.1, None, True],
}
"""Every type that FlexBuffers have for JSON."""
FOLDERS = {
    "manifests": FileType.MANIFEST,
    "snapshots": FileType.SNAPSHOT,
    "transactions": FileType.TRANSACTION_LOG,
}
MODULES = {
    FileType.MANIFEST: (manifest, wire.MANIFEST),
    FileType.SNAPSHOT: (snapshot, wire.SNAPSHOT),
    FileType.TRANSACTION_LOG: (transaction_log, wire.TRANSACTION_LOG),
    FileType.REPO_INFO: (repo_info, wire.REPO),
}


def record(folder: Path) -> None:
    """Have the official library write the files that `corpus` reads from CORPUS."""
    small = RepositoryPlan(
        groups=("a", "a-b", "é"),
        arrays={
            "a/b": ArrayPlan((5, 4), (2, 3), KINDS, ("x", None), {"k": 1.5}),
            "s": ArrayPlan((), (), ("native",)),
        },
        commit_metadata={"a": [1, 2.5, None, {"é": 2**63}], "b": "text"},
        repository_metadata={"x": {"y": [True, "z"]}},
        split=2,
        tags=("t",),
        deleted_tags=("d", "e"),
        branches=("dev", "é/ü"),
    )
    medium = RepositoryPlan(
        arrays={
            "v": ArrayPlan((40, 30), (1, 1), ("virtual",)),
            "n": ArrayPlan((300,), (1,), ("native", "inline", "virtual")),
        }
    )
    CORPUS.mkdir(exist_ok=True)
    for size, plan in (("small", small), ("medium", medium)):
        root = build(folder / size / "repo", plan).path
        shutil.copy(root / "repo", CORPUS / f"repo_info-{size}")
        for name, kind in FOLDERS.items():
            files = sorted((root / name).glob("*"), key=lambda path: path.stat().st_size)
            for number, path in enumerate({*files[:2], *files[-2:]}):
                shutil.copy(path, CORPUS / f"{kind.name.lower()}-{size}-{number}")


def corpus() -> list[Sample]:
    """Files of all four types, written by both libraries."""
    official = [
        sample(FileType[path.name.partition("-")[0].upper()], path.read_bytes())
        for path in sorted(CORPUS.iterdir())
    ]
    rewritten = []
    for item in official:
        module, _ = MODULES[item.kind]
        rewritten.append(sample(item.kind, module.encode(module.decode(item.data))))
    return [*official, *rewritten, *_our_own()]


def _our_own() -> Iterator[Sample]:
    index = np.stack(np.unravel_index(np.arange(2000), (10, 20, 10)), axis=1).astype(np.uint32)
    urls = Ragged.of_text(f"s3://bucket/some/prefix/{n % 300:04}.nc" for n in range(2000))
    lengths = np.full(2000, 10, np.uint64)
    virtual = ChunkRefs.virtual(index, urls, lengths, lengths, checksum_etag=urls)
    native = ChunkRefs.native(
        index[:500, :2][:1], np.full((1, 12), 9, np.uint8), lengths[:1], lengths[:1]
    )
    arrays = tuple(
        manifest.ArrayManifest(NodeId(bytes([n] * 8)), refs, b"extra")
        for n, refs in enumerate((native, virtual))
    )
    value = manifest.Manifest(ManifestId(bytes(12)), arrays, b"extra")
    yield sample(FileType.MANIFEST, manifest.encode(value))
    move = transaction_log.Move("/a", "/b", NodeId(bytes(8)), is_array=True)
    chunks = {NodeId(bytes([n] * 8)): index[: n + 1] for n in range(5)}
    log = TransactionLog(id=INITIAL_SNAPSHOT_ID, updated_chunks=chunks, moves=(move,) * 3)
    yield sample(FileType.TRANSACTION_LOG, transaction_log.encode(log))
    described = snapshot.decode((CORPUS / "snapshot-small-0").read_bytes())
    yield sample(FileType.SNAPSHOT, snapshot.encode(replace(described, metadata=METADATA)))


def sample(kind: FileType, data: bytes) -> Sample:
    _, payload = header.unpack(data, kind, name=NAME)
    places, values = steering_places(payload, MODULES[kind][1])
    lookups = []
    if kind == FileType.MANIFEST:
        for item in manifest.decode(data).arrays:
            rows = sorted({0, len(item.refs) // 2, len(item.refs) - 1})
            lookups += [(item.node_id, item.refs.index[row].tolist()) for row in rows]
    return Sample(kind, data, payload, sorted(places), sorted(values), lookups)


def check(item: Sample, data: bytes) -> str:
    """Decode and use what comes out; the outcome in a word.

    Raises whatever is not a FormatError that names the file.
    """
    module, _ = MODULES[item.kind]
    value = named(lambda: module.decode(data, name=NAME))
    if item.kind == FileType.MANIFEST:
        look_up(item, data, value)
    if value is None:
        return "refused"
    TOUCH[item.kind](value)
    expect(value.equals(value), "a value differs from itself")
    try:
        again = module.encode(value)
    except InvalidInputError as error:
        return error.kind
    expect(module.decode(again, name=NAME).equals(value), "a rewrite differs")
    return "read"


def named(work: Callable[[], Any]) -> Any:
    """What the work gives, or None if the file is refused by name."""
    try:
        return work()
    except FormatError as error:
        expect(str(error).startswith(f"{NAME}: "), f"the file is not named: {error}")
        return None


def expect(holds: bool, otherwise: str) -> None:
    if not holds:
        raise AssertionError(otherwise)


def look_up(item: Sample, data: bytes, value: manifest.Manifest | None) -> None:
    """A lookup finds what decoding finds, unless it has to refuse the file."""
    unpacked = named(lambda: header.unpack(data, item.kind, name=NAME))
    for node_id, coords in item.lookups if unpacked else ():
        found = named(partial(find_one, unpacked[1], node_id, coords))
        refs = None if value is None else value.array(node_id)
        if refs is None or refs.dimensions != len(coords):
            continue
        row = refs.row(coords)
        expect(found == (None if row is None else refs[row],), "a lookup finds something else")


def find_one(payload: bytes, node_id: NodeId, coords: list[int]) -> tuple[ChunkRef | None]:
    return (lookup.find_ref(payload, node_id, coords, name=NAME),)


def touch_manifest(value: manifest.Manifest) -> None:
    for item in value.arrays:
        for row in some(len(item.refs)):
            item.refs[row]


def touch_snapshot(value: snapshot.Snapshot) -> None:
    for row in some(len(value.nodes)):
        node = value.nodes[row]
        value.nodes.below(node.path)
        expect(value.nodes.row(node.path) == row, "a node is not found")
        if node.array is not None:
            node.array.manifests.covering([0] * len(node.array.shape))
    for row in some(len(value.manifest_files)):
        value.manifest_files.row(ManifestId(value.manifest_files.id[row].tobytes()))


def touch_repo(value: repo_info.RepoInfo) -> None:
    snapshots = value.snapshots
    for row in some(len(snapshots)):
        # Metadata is decoded on demand only, so damage in it shows here.
        try:
            snapshots[row]
        except FormatError as error:
            expect(str(error).startswith("repo: snapshot "), f"the file is not named: {error}")
        expect(snapshots.row(snapshots.id_at(row)) == row, "a snapshot is not found")
        above, steps = row, 0
        while above >= 0:
            above, steps = int(snapshots.parent[above]), steps + 1
            expect(steps <= len(snapshots), "ancestry has no end")
    for row in some(len(value.updates)):
        value.updates[row]
    value.branches.todict()
    value.tags.todict()
    value.deleted_tags.texts()


TOUCH: dict[FileType, Callable[[Any], object]] = {
    FileType.MANIFEST: touch_manifest,
    FileType.SNAPSHOT: touch_snapshot,
    FileType.TRANSACTION_LOG: lambda value: value.merged(value),
    FileType.REPO_INFO: touch_repo,
}


def some(count: int) -> list[int]:
    return sorted({*range(min(count, 20)), *range(max(count - 5, 0), count)})


def run(count: int, seed: int) -> Counter[str]:
    """Check that many mutated files; what became of them, by mutation.

    Raises:
        AssertionError: naming the seed and the number of the file that broke a rule.
    """
    samples = corpus()
    for item in samples:
        assert check(item, item.data) == "read"
    outcomes: Counter[str] = Counter()
    baseline = peak_memory()
    mutations, weights = list(MUTATIONS), list(MUTATIONS.values())
    for number in range(count):
        random = Random(f"{seed}-{number}")
        item = random.choice(samples)
        (mutate,) = random.choices(mutations, weights)
        if random.random() < RARE_BOMBS:
            mutate = bomb
        data = mutate(item, random, samples)
        what = f"seed {seed}, file {number}: {mutate.__name__} of a {item.kind.name}"
        started = time.process_time()
        try:
            outcome = check(item, data)
        except Exception as error:
            raise AssertionError(f"{what}: {type(error).__name__}: {error}") from error
        seconds = time.process_time() - started
        assert seconds <= MAX_SECONDS, f"{what}: took {seconds:.1f} s"
        grown = peak_memory() - baseline
        assert grown <= MAX_MEMORY, f"{what}: took {grown / 2**20:.0f} MiB"
        outcomes[f"{mutate.__name__}: {outcome}"] += 1
    outcomes["MiB of memory"] = (peak_memory() - baseline) // 2**20
    return outcomes


def peak_memory() -> int:
    """Bytes, of this process since it began."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--record", action="store_true", help="renew the files that are mutated")
    options = parser.parse_args()
    if options.record:
        with tempfile.TemporaryDirectory() as folder:
            record(Path(folder))
    started = time.perf_counter()
    outcomes = run(options.count, options.seed)
    for outcome, number in sorted(outcomes.items()):
        print(f"{number:8} {outcome}")
    print(f"{options.count} files in {time.perf_counter() - started:.0f} s: all well")


if __name__ == "__main__":
    main()
