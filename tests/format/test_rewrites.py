"""Every field of the spec survives reading and writing, whoever wrote the file.

Another writer's file is read and written anew; the oracle must find the same in both. Values that
no version of icefloe knows (flags, an availability, bytes of a configuration) are among them.
"""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from flatbuffers_oracle import OFFICIAL, Builder, Oracle
from icefloe.format import flexbuffers, header, repo_info, snapshot, transaction_log
from icefloe.format.header import FileType
from icefloe.format.paths import segment_key

oracle = Oracle(OFFICIAL)

text = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
blob = st.binary(max_size=20)
u8, u16, u32, u64 = (st.integers(0, 2**bits - 1) for bits in (8, 16, 32, 64))
id8 = st.binary(min_size=8, max_size=8)
id12 = st.binary(min_size=12, max_size=12)
segments = st.lists(st.sampled_from(["a", "a-b", "a.b", "b", "é"]), max_size=3)
paths = segments.map("/".join).map("/{}".format)
json = st.recursive(
    st.none() | st.booleans() | u64 | st.floats(allow_nan=False, allow_infinity=False) | text,
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


def table(**fields):
    return st.fixed_dictionaries(fields)


def unique(items, key, max_size=4):
    """Lists in the order of a key that occurs once, as files want them."""
    return st.lists(items, unique_by=key, max_size=max_size).map(lambda rows: sorted(rows, key=key))


def by_name(row):
    return row["name"].encode()


def joined(ids):
    return unique(ids, lambda raw: raw).map(b"".join)


values = table(name=text, value=json.map(flexbuffers.encode))
metadata = unique(values, by_name, max_size=3)
status = table(availability=u8, set_at=u64, limited_availability_reason=st.none() | text)
FIELDS = {
    "string": text,
    "ObjectId12": id12,
    "RepoStatus": st.none() | status,
    "uint8": u8,
    "uint16": u16,
    "bool": st.integers(0, 1),
}


def update_types():
    members = OFFICIAL.unions["UpdateType"]
    return st.one_of(
        st.tuples(
            st.just(tag),
            table(**{name: FIELDS[kind] for name, kind, _, _ in OFFICIAL.tables[member]}),
        )
        for tag, (_, member) in enumerate(members, 1)
    )


updates = table(update_type=update_types(), updated_at=u64, backup_path=st.none() | text)
flags = st.none() | unique(u16, lambda flag: flag).map(
    lambda chosen: b"".join(flag.to_bytes(2, "little") for flag in chosen)
)


@st.composite
def repos(draw):
    ids = draw(unique(id12, lambda raw: raw, max_size=5).filter(len))
    infos = [
        {
            "id": raw,
            "parent_offset": draw(st.integers(-1, row - 1)),
            "flushed_at": draw(u64),
            "message": draw(text),
            # Its values are kept as they are, so they may be anything.
            "metadata": draw(st.none() | unique(table(name=text, value=blob), by_name)),
            "pruned_ancestor_tx_logs": draw(st.none() | st.lists(id12, min_size=1).map(b"".join)),
        }
        for row, raw in enumerate(ids)
    ]
    refs = unique(table(name=text, snapshot_index=st.integers(0, len(ids) - 1)), by_name)
    return {
        "spec_version": draw(u8),
        "tags": draw(refs),
        "branches": draw(refs),
        "deleted_tags": draw(unique(text, str.encode)),
        "snapshots": infos,
        "status": draw(status),
        "metadata": draw(st.none() | metadata),
        "latest_updates": draw(st.lists(updates, max_size=8)),
        "repo_before_updates": draw(st.none() | text),
        "config": draw(st.none() | blob),
        "enabled_feature_flags": draw(flags),
        "disabled_feature_flags": draw(flags),
        "extra": draw(st.none() | blob),
    }


@st.composite
def array_data(draw, manifest_ids):
    rank = draw(st.integers(0, 3))
    ranges = st.binary(min_size=8 * rank, max_size=8 * rank)
    dimensions = table(array_length=u64, num_chunks=u32)
    used = draw(st.lists(st.sampled_from(manifest_ids), max_size=3)) if manifest_ids else []
    return {
        "shape": b"",
        "dimension_names": draw(st.none() | st.lists(table(name=st.none() | text), max_size=3)),
        "manifests": [{"object_id": raw, "extents": draw(ranges)} for raw in used],
        "shape_v2": draw(st.lists(dimensions, min_size=rank, max_size=rank)),
    }


@st.composite
def snapshots(draw):
    pool = draw(st.lists(id12, max_size=3, unique=True))
    nodes = draw(
        unique(
            table(
                id=id8,
                path=paths,
                user_data=blob,
                node_data=st.tuples(st.just(1), array_data(pool)) | st.just((2, {})),
                extra=st.none() | blob,
            ),
            lambda node: node["path"].encode(),
        )
    )
    arrays = [node["node_data"][1] for node in nodes if node["node_data"][0] == 1]
    used = {item["object_id"] for array in arrays for item in array["manifests"]}
    files = [
        {"id": raw, **draw(table(size_bytes=u64, num_chunk_refs=u32, extra=st.none() | blob))}
        for raw in sorted(used)
    ]
    return {
        "id": draw(id12),
        "parent_id": None,
        "nodes": nodes,
        "flushed_at": draw(u64),
        "message": draw(text),
        "metadata": draw(metadata),
        "manifest_files": b"",
        "manifest_files_v2": files,
        "extra": draw(st.none() | blob),
    }


@st.composite
def coordinates(draw):
    rank = draw(st.integers(0, 3))
    coords = st.tuples(*[u32] * rank)
    rows = draw(unique(coords, lambda row: row, max_size=5))
    return [{"coords": b"".join(n.to_bytes(4, "little") for n in row)} for row in rows]


moves = table(**{"from": text, "to": paths, "node_id": id8})
transaction_logs = table(
    id=id12,
    **{name: joined(id8) for name in transaction_log.ID_LISTS},
    updated_chunks=unique(table(node_id=id8, chunks=coordinates()), lambda row: row["node_id"]),
    moved_nodes=unique(
        st.tuples(moves, st.integers(0, 1)).map(lambda pair: {**pair[0], "node_type": pair[1]}),
        lambda move: segment_key(move["to"]),
    ),
    extra=st.none() | blob,
)


def assert_survives(record, root, kind, module, seed):
    foreign = Builder(oracle, Random(seed), force_defaults=seed % 2 == 0).finish(record, root)
    value = module.decode(header.pack(foreign, kind))
    data = module.encode(value)
    assert module.decode(data).equals(value)
    payload = header.unpack(data, kind, name="rewritten")[1]
    assert oracle.read(payload, root) == record


seeds = st.integers(0, 2**16)


@given(repos(), seeds)
def test_a_repo_object_survives_a_rewrite(record, seed):
    assert_survives(record, "Repo", FileType.REPO_INFO, repo_info, seed)


@given(snapshots(), seeds)
def test_a_snapshot_survives_a_rewrite(record, seed):
    assert_survives(record, "Snapshot", FileType.SNAPSHOT, snapshot, seed)


@given(transaction_logs, seeds)
def test_a_transaction_log_survives_a_rewrite(record, seed):
    assert_survives(record, "TransactionLog", FileType.TRANSACTION_LOG, transaction_log, seed)
