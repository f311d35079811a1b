"""The whole of maintenance on every kind of store, taking turns with the official library."""

import re
import uuid

import icechunk
import pytest

from icefloe.assets import Assets
from icefloe.format.ids import encode_ids, random_ids
from icefloe.maintenance.expire import expire_snapshots
from icefloe.maintenance.gc import garbage_collect
from icefloe.maintenance.listing import list_ids
from icefloe.maintenance.ops_log import trim_ops_log
from icefloe.maintenance.stats import chunk_storage_stats
from icefloe.maintenance.verify import verify
from icefloe.storage import MemoryStorage, open_storage
from maintenance.histories import FUTURE, assets, files, seen, write_chunk


def upload(path, storage):
    items = [
        (str(file.relative_to(path)), file.read_bytes())
        for file in path.rglob("*")
        if file.is_file()
    ]
    storage.put_many(items)
    return storage


@pytest.fixture
def s3(s3_server):
    return open_storage(s3_server.root(), s3_server.options)


def official_s3(server, url):
    prefix = url.rpartition("/")[2]
    return icechunk.s3_storage(
        bucket=server.bucket,
        prefix=prefix,
        endpoint_url=server.endpoint,
        access_key_id=server.key,
        secret_access_key=server.secret,
        region="us-east-1",
        allow_http=True,
        force_path_style=True,
    )


def everything(store, messy):
    """All operations, one after the other; what is left."""
    assert [*verify(store, "objects")] == []
    released = expire_snapshots(store, messy.middle, keep_last=2).released_snapshots
    assert [*verify(store, "objects")] == []
    rehearsed = garbage_collect(store, FUTURE, dry_run=True)
    summary = garbage_collect(store, FUTURE, force=True, concurrency=4)
    assert summary.bytes_deleted == rehearsed.bytes_deleted > 0
    assert trim_ops_log(store).backups_deleted == 0
    assert [*verify(store, "objects")] == []
    return released, summary.chunks_deleted, chunk_storage_stats(store, "snapshot")


def keys(storage, *folders):
    return {item.key for name in folders for page in storage.list(name) for item in page}


FOLDERS = ("snapshots/", "transactions/", "manifests/", "chunks/")


@pytest.mark.parametrize("backend", ["memory", pytest.param("s3", marks=pytest.mark.s3)])
def test_every_store_is_left_as_the_local_one_is(backend, messy, copies, request):
    path = copies()
    expected = everything(assets(path), messy)
    empty = MemoryStorage() if backend == "memory" else request.getfixturevalue("s3")
    storage = upload(messy.path, empty)
    assert everything(Assets(storage), messy) == expected
    assert keys(storage, *FOLDERS) == files(path)
    info, _ = Assets(storage).repo()
    assert len(info.snapshots) == len(seen(path)["snapshots"])


@pytest.mark.s3
def test_taking_turns_with_the_official_library_on_s3(s3, s3_server, messy):
    upload(messy.path, s3)
    location = official_s3(s3_server, s3.url)
    repo = icechunk.Repository.open(location)
    expire_snapshots(Assets(s3), messy.middle)
    for number in range(3):
        session = repo.writable_session("main")
        write_chunk(session, number, number)
        session.commit(f"{number}")
    garbage_collect(Assets(s3), FUTURE, force=True)
    repo = icechunk.Repository.open(location)
    repo.expire_snapshots(FUTURE)
    assert repo.garbage_collect(FUTURE).snapshots_deleted > 0
    expire_snapshots(Assets(s3), FUTURE, delete_expired_branches=True, delete_expired_tags=True)
    garbage_collect(Assets(s3), FUTURE, force=True)
    assert repo.garbage_collect(FUTURE).bytes_deleted == 0
    assert [*verify(Assets(s3), "objects")] == []
    assert set(icechunk.Repository.open(location).list_branches()) == {"main"}


@pytest.mark.s3
def test_a_long_listing_on_s3_is_split_by_prefix(s3):
    names = {str(uuid.uuid4()) for _ in range(5)}
    ids = {name.decode() for name in encode_ids(random_ids(1100)).tolist()}
    s3.put_many([(f"chunks/{name}", b"") for name in ids | names])
    found = [item for page in list_ids(s3, "chunks/", concurrency=8) for item in page.objects]
    assert sorted(item.key for item in found) == sorted(f"chunks/{name}" for name in ids)
    spans = {range(256, 512): "^[89A-F]", range(320, 325): "^A[0-4]", range(31, 65): "^(0Z|1|20)"}
    for span, pattern in spans.items():
        some = list_ids(s3, "chunks/", span=span, concurrency=8)
        letters = {item.key.removeprefix("chunks/") for page in some for item in page.objects}
        assert letters == {name for name in ids if re.match(pattern, name)}
