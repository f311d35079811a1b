"""Both directions with the official library: we read what it writes, it reads what we rewrite."""

import os
import tempfile
from datetime import UTC, datetime, timedelta
from pathlib import Path

import icechunk
import numpy as np
import pytest
import zarr
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from icefloe.format import header, lookup, manifest, repo_info, snapshot, transaction_log
from icefloe.format.chunk_refs import InlineRef, NativeRef, VirtualRef
from icefloe.format.ids import ManifestId, SnapshotId
from official_repos import KINDS, ArrayPlan, Official, RepositoryPlan, build, grid

EXAMPLES = int(os.environ.get("INTEROP_EXAMPLES", "60"))
FOLDERS = {"snapshots": snapshot, "manifests": manifest, "transactions": transaction_log}

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)
numbers = st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False, allow_infinity=False)
json = st.recursive(
    st.none() | st.booleans() | numbers | text,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
objects = st.dictionaries(text, json, max_size=3)
attributes = st.dictionaries(text, st.integers(-(2**53), 2**53) | text | st.none(), max_size=2)
segments = st.sampled_from(["a", "a-b", "a.b", "b", "B", "é", "日本", "x y", "😀"])
paths = st.lists(segments, min_size=1, max_size=3).map("/".join)
ref_names = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=8
)


@st.composite
def array_plans(draw):
    rank = draw(st.integers(0, 4))
    longest = (1, 9, 5, 3, 3)[rank]
    names = st.none() | st.sampled_from(["x", "été", "time"])
    return ArrayPlan(
        shape=tuple(draw(st.integers(0, longest)) for _ in range(rank)),
        chunks=tuple(draw(st.integers(1, 3)) for _ in range(rank)),
        kinds=tuple(draw(st.lists(st.sampled_from(KINDS), min_size=1, max_size=4))),
        dimension_names=draw(st.none() | st.tuples(*[names] * rank)) if rank else None,
        attributes=draw(attributes),
    )


@st.composite
def repository_plans(draw):
    chosen = draw(st.sets(paths, max_size=6))
    above = {path[:at] for path in chosen for at in range(len(path)) if path[at] == "/"}
    leaves = sorted(chosen - above)
    arrays = {path: draw(array_plans()) for path in leaves if draw(st.integers(0, 3))}
    names = sorted(draw(st.sets(ref_names, max_size=6)) - {"main"})
    cut, end = sorted((draw(st.integers(0, len(names))), draw(st.integers(0, len(names)))))
    return RepositoryPlan(
        groups=tuple(sorted((chosen | above) - arrays.keys())),
        arrays=arrays,
        message=draw(text),
        commit_metadata=draw(objects),
        repository_metadata=draw(st.none() | objects),
        split=draw(st.none() | st.integers(1, 3)),
        tags=tuple(names[:cut]),
        deleted_tags=tuple(names[cut:end]),
        branches=tuple(names[end:]),
    )


def official_settings(examples):
    return settings(
        max_examples=examples,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def written(plan):
    return build(Path(tempfile.mkdtemp(dir=FOLDER.name)) / "repo", plan)


FOLDER = tempfile.TemporaryDirectory(prefix="icefloe-interop-")


def reencode(root: Path) -> int:
    """Write every metadata file anew, having checked that it decodes to the same values again."""
    sizes = {}
    count = 0
    for path in sorted((root / "manifests").glob("*")):
        value = manifest.decode(path.read_bytes(), name=path.name)
        data = manifest.encode(value)
        assert manifest.decode(data).equals(value), path
        path.write_bytes(data)
        sizes[path.name] = len(data)
        count += 1
    for path in sorted((root / "snapshots").glob("*")):
        value = snapshot.decode(path.read_bytes(), name=path.name)
        names = [str(ManifestId(row.tobytes())) for row in value.manifest_files.id]
        value.manifest_files.size_bytes[:] = [sizes[name] for name in names]
        data = snapshot.encode(value)
        assert snapshot.decode(data).equals(value), path
        path.write_bytes(data)
        count += 1
    repos = [root / "repo", *(root / "overwritten").glob("repo*")]
    logs = sorted((root / "transactions").glob("*"))
    for path, module in [(p, repo_info) for p in repos] + [(p, transaction_log) for p in logs]:
        value = module.decode(path.read_bytes(), name=path.name)
        data = module.encode(value)
        assert module.decode(data).equals(value), path
        path.write_bytes(data)
        count += 1
    return count


def write_further(official: Official, repo: icechunk.Repository) -> None:
    """Everything the official library may do to a repository after us."""
    before = repo.lookup_branch("main")
    session = repo.writable_session("main")
    root = zarr.open_group(session.store, mode="r+")
    for path, values in official.expected.items():
        if values.size:
            corner = (0,) * values.ndim
            root[path][corner] = 200
            values[corner] = 200
    root.require_group("later").attrs["n"] = 1
    session.commit("later", {"by": "official"})
    repo.create_tag("later-tag", repo.lookup_branch("main"))
    session = repo.writable_session("main")
    zarr.open_group(session.store, mode="r+").attrs["amended"] = True
    amended = session.amend("amended")
    official.verify(repo)
    diff = repo.diff(from_snapshot_id=before, to_branch="main")
    assert "/later" in diff.new_groups
    updates = [type(update.kind).__name__ for update in repo.ops_log()]
    assert updates[-1] == "RepoInitialized"
    assert "CommitAmended" in updates[0]
    now = datetime.now(UTC) + timedelta(seconds=1)
    repo.expire_snapshots(older_than=now)
    repo.garbage_collect(now)
    official.verify(official.open())
    assert repo.lookup_branch("main") == amended


@official_settings(EXAMPLES)
@given(repository_plans())
def test_a_repository_that_icefloe_rewrote_is_read_and_written_further_by_the_official_library(
    plan,
):
    official = written(plan)
    assert reencode(official.path) > 3
    repo = official.open()
    official.verify(repo)
    for tag in plan.tags:
        official.verify(repo, tag=tag)
    for branch in plan.branches:
        official.verify(repo, branch=branch)
    assert repo.list_tags() == set(plan.tags)
    assert repo.list_branches() == {"main", *plan.branches}
    assert repo.get_metadata() == (plan.repository_metadata or {})
    history = list(repo.ancestry(branch="main"))
    assert history[-2].message == plan.message
    assert history[-2].metadata == plan.commit_metadata
    write_further(official, repo)
    # What it wrote on top of our files is readable again.
    reencode(official.path)
    official.verify(official.open())


@official_settings(EXAMPLES)
@given(repository_plans())
def test_what_the_official_library_wrote_decodes_to_what_the_plan_says(plan):
    official = written(plan)
    repo = repo_info.decode((official.path / "repo").read_bytes())
    assert set(repo.branches.todict()) == {"main", *plan.branches}
    assert set(repo.tags.todict()) == set(plan.tags)
    assert repo.deleted_tags.texts() == sorted(plan.deleted_tags, key=str.encode)
    assert (repo.metadata or {}) == (plan.repository_metadata or {})
    tip = repo.snapshots.id_at(repo.branches.todict()["main"])
    read = snapshot.decode((official.path / "snapshots" / str(tip)).read_bytes())
    assert read.id == tip
    nodes = [read.nodes[row] for row in range(len(read.nodes))]
    assert [node.path for node in nodes] == sorted(
        ["/", *(f"/{path}" for path in (*plan.groups, *plan.arrays))], key=str.encode
    )
    for node in nodes:
        array = plan.arrays.get(node.path[1:])
        assert (node.array is None) == (array is None)
        if array is not None:
            assert_array(official, node, array)
    infos = [repo.snapshots[row] for row in range(len(repo.snapshots))]
    by_message = {info.message: info for info in infos if info.parent_id}
    assert by_message[plan.message].metadata == plan.commit_metadata
    for info in infos:
        file = snapshot.decode((official.path / "snapshots" / str(info.id)).read_bytes())
        assert (file.flushed_at, file.message, file.metadata) == (
            info.flushed_at,
            info.message,
            info.metadata,
        )
    assert [str(u) for u in chain(repo, tip)] == [
        i.id for i in official.open().ancestry(branch="main")
    ]


def chain(repo: repo_info.RepoInfo, tip: SnapshotId) -> list[SnapshotId]:
    row = repo.snapshots.row(tip)
    ids = []
    while row >= 0:
        ids.append(repo.snapshots.id_at(row))
        row = int(repo.snapshots.parent[row])
    return ids


def assert_array(official: Official, node, array: ArrayPlan) -> None:
    assert tuple(d.array_length for d in node.array.shape) == array.shape
    assert tuple(d.num_chunks for d in node.array.shape) == tuple(
        -(-length // n) for length, n in zip(array.shape, array.chunks, strict=True)
    )
    assert node.array.dimension_names == array.dimension_names
    kinds = {"inline": InlineRef, "native": NativeRef, "virtual": VirtualRef}
    payloads = {}
    for manifest_id in node.array.manifests.ids():
        data = (official.path / "manifests" / str(manifest_id)).read_bytes()
        payloads[manifest_id] = header.unpack(data, header.FileType.MANIFEST, name="m")[1]
    ids = node.array.manifests.ids()
    for number, coords in enumerate(grid(array)):
        kind = array.kinds[number % len(array.kinds)]
        rows = node.array.manifests.covering(coords).tolist()
        found = [lookup.find_ref(payloads[ids[row]], node.id, coords) for row in rows]
        found = [ref for ref in found if ref is not None]
        assert [type(ref) for ref in found] == ([kinds[kind]] if kind in kinds else [])
        for row in rows:
            decoded = manifest.decode_payload(payloads[ids[row]]).array(node.id)
            place = decoded.row(coords)
            assert (None if place is None else decoded[place]) in [None, *found]


def test_locations_compressed_with_a_dictionary_are_read_in_both_directions():
    plan = RepositoryPlan(arrays={"v": ArrayPlan((40, 60), (1, 1), ("virtual",))})
    official = written(plan)
    (path,) = [
        path
        for path in (official.path / "manifests").glob("*")
        if manifest.decode(path.read_bytes()).count == 2400
    ]
    payload = header.unpack(path.read_bytes(), header.FileType.MANIFEST, name="m")[1]
    # The dictionary leaves little of 2,400 equal prefixes.
    assert payload.count(official.virtual_prefix.encode()) < 10
    refs = manifest.decode(path.read_bytes()).arrays[0].refs
    # The official library normalises file URLs.
    location = f"{official.virtual_prefix}donn%C3%A9es.bin"
    assert set(refs.location.texts()) == {location}
    reencode(official.path)
    payload = header.unpack(path.read_bytes(), header.FileType.MANIFEST, name="m")[1]
    assert payload.count(official.virtual_prefix.encode()) < 10
    repo = official.open()
    official.verify(repo)
    session = repo.readonly_session(branch="main")
    assert set(session.all_virtual_chunk_locations()) == {location}
    write_further(official, repo)


def test_moves_flags_and_status_of_the_official_library_survive_a_rewrite():
    official = written(RepositoryPlan(arrays={"a/b": ArrayPlan((4,), (1,), ("native",))}))
    repo = official.open()
    session = repo.rearrange_session("main")
    session.move("/a/b", "/c")
    before_move = repo.lookup_branch("main")
    session.commit("move")
    repo.set_feature_flag("create_tag", setting=False)
    repo.set_feature_flag("delete_tag", setting=True)
    repo.set_feature_flag("delete_tag", setting=None)
    repo.set_status(
        icechunk.RepoStatus(
            icechunk.RepoAvailability.read_only, limited_availability_reason="a reason"
        )
    )
    repo.set_status(icechunk.RepoStatus(icechunk.RepoAvailability.online))
    session = repo.writable_session("main")
    zarr.open_group(session.store, mode="r+").require_group("detached")
    session.flush("detached")
    before = [(u.kind, u.updated_at) for u in repo.ops_log()]
    config = repo_info.decode((official.path / "repo").read_bytes()).config
    assert config
    reencode(official.path)
    assert repo_info.decode((official.path / "repo").read_bytes()).config == config
    repo = official.open()
    assert [str(u) for u, _ in before] == [str(u.kind) for u in repo.ops_log()]
    assert [t for _, t in before] == [u.updated_at for u in repo.ops_log()]
    assert [flag.name for flag in repo.disabled_feature_flags()] == ["create_tag"]
    moves = repo.diff(from_snapshot_id=before_move, to_branch="main").moved_nodes
    assert moves == [("/a/b", "/c")]
    root = zarr.open_group(repo.readonly_session(branch="main").store, mode="r")
    assert np.array_equal(root["c"][...], official.expected["a/b"])


@pytest.mark.slow
@official_settings(2000)
@given(repository_plans())
def test_many_repositories_survive_a_rewrite(plan):
    official = written(plan)
    reencode(official.path)
    official.verify(official.open())
    write_further(official, official.open())
