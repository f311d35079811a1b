"""What every store promises, on each of them."""

from datetime import UTC, datetime, timedelta

import pytest

from icefloe.errors import ConflictError, InvalidInputError, NotFoundError, StorageError
from icefloe.storage import ObjectInfo, Version, probe_preconditions


def keys(storage, *arguments, **named):
    return [info.key for page in storage.list(*arguments, **named) for info in page]


@pytest.fixture
def backend(request):
    return request.node.callspec.params["opener"]


def test_what_was_put_is_got_with_its_version(storage):
    version = storage.put("snapshots/A", b"bytes \x00\xff")
    found = storage.get("snapshots/A")
    assert found.data == b"bytes \x00\xff"
    assert found.version == version
    assert '"' not in version.token


def test_an_empty_object_is_an_object(storage):
    storage.put("empty", b"")
    assert storage.get("empty").data == b""
    assert storage.info("empty").size == 0
    assert storage.exists("empty")


def test_a_put_replaces_what_was_there_and_changes_the_version(storage):
    first = storage.put("repo", b"one")
    second = storage.put("repo", b"two")
    assert first != second
    assert storage.get("repo").data == b"two"


def test_a_known_version_is_not_sent_again(storage):
    version = storage.put("repo", b"one")
    assert storage.get("repo", known=version) is None
    assert storage.get("repo", known=Version("0123456789abcdef")).data == b"one"
    newer = storage.put("repo", b"two")
    assert storage.get("repo", known=version).version == newer


@pytest.mark.parametrize("verb", ["get", "info"])
def test_a_missing_object_is_named_with_its_store(storage, verb):
    with pytest.raises(NotFoundError) as caught:
        getattr(storage, verb)("snapshots/MISSING")
    assert caught.value.kind == "object-not-found"
    assert "snapshots/MISSING" in str(caught.value)
    assert storage.url in str(caught.value)


def test_a_missing_object_is_missing_for_ranges_and_batches_too(storage):
    storage.put("there", b"x")
    with pytest.raises(NotFoundError):
        storage.get_range("missing", 0, 1)
    with pytest.raises(NotFoundError):
        storage.get_ranges([("there", 0, 1), ("missing", 0, 1)])
    with pytest.raises(NotFoundError):
        storage.get_many(["there", "missing"])
    assert not storage.exists("missing")


def test_a_folder_is_no_object(storage):
    storage.put("chunks/A", b"x")
    assert not storage.exists("chunks")
    with pytest.raises(NotFoundError):
        storage.get("chunks")
    assert storage.delete(["chunks"]).failures == {}
    assert storage.exists("chunks/A")


def test_ranges_come_back_exactly_and_in_order(storage):
    data = bytes(range(256)) * 8
    storage.put("chunks/A", data)
    storage.put("chunks/B", data[::-1])
    assert storage.get_range("chunks/A", 100, 28) == data[100:128]
    assert storage.get_range("chunks/A", len(data) - 1, 1) == data[-1:]
    assert storage.get_range("chunks/A", 0, len(data)) == data
    wanted = [("chunks/A", i, 3) for i in range(40)] + [("chunks/B", 0, 2), ("chunks/A", 5, 0)]
    expected = [data[i : i + 3] for i in range(40)] + [data[::-1][:2], b""]
    assert storage.get_ranges(wanted) == expected


@pytest.mark.parametrize(("start", "length"), [(2, 9), (5, 1), (100, 10)])
def test_an_object_shorter_than_its_range_is_an_error_that_names_both(storage, start, length):
    storage.put("chunks/A", b"12345")
    with pytest.raises(StorageError) as caught:
        storage.get_range("chunks/A", start, length)
    assert caught.value.kind == "short-read"
    assert "chunks/A" in str(caught.value)
    assert f"{start} to {start + length}" in str(caught.value)


def test_a_range_that_is_none_is_refused(storage):
    with pytest.raises(InvalidInputError):
        storage.get_range("a", -1, 2)
    with pytest.raises(InvalidInputError):
        storage.get_range("a", 0, -2)


def test_many_objects_are_put_and_got_in_order(opener):
    storage = opener(concurrency=4)
    items = [(f"chunks/{i:03}", b"%d" % i) for i in range(50)]
    storage.put_many(items)
    assert storage.get_many([key for key, _ in reversed(items)]) == [
        data for _, data in reversed(items)
    ]
    assert storage.get_many([]) == []


def test_create_works_once(storage):
    version = storage.put_if("repo", b"first", expected=None)
    for data in (b"second", b"first"):
        with pytest.raises(ConflictError) as caught:
            storage.put_if("repo", data, expected=None)
        assert caught.value.kind == "precondition-failed"
        assert "repo" in str(caught.value)
        assert storage.url in str(caught.value)
    assert storage.get("repo").version == version


def test_a_stale_version_loses(storage):
    stale = storage.put_if("repo", b"first", expected=None)
    version = storage.put_if("repo", b"second", expected=stale)
    for data in (b"third", b"first", b"second"):
        with pytest.raises(ConflictError):
            storage.put_if("repo", data, expected=stale)
    assert storage.get("repo").data == b"second"
    assert storage.get("repo").version == version


def test_a_swap_of_an_object_that_is_gone_is_a_conflict(storage):
    version = storage.put("repo", b"first")
    storage.delete(["repo"])
    with pytest.raises(ConflictError):
        storage.put_if("repo", b"second", expected=version)
    assert not storage.exists("repo")


def test_a_rival_between_read_and_write_is_noticed(storage):
    storage.put("n", b"1")
    rivals = [b"10", b"20"]
    attempts = 0
    while True:
        found = storage.get("n")
        if rivals:
            storage.put("n", rivals.pop(0))
        attempts += 1
        try:
            storage.put_if("n", b"%d" % (int(found.data) + 1), expected=found.version)
            break
        except ConflictError:
            continue
    assert attempts == 3
    assert storage.get("n").data == b"21"


def test_metadata_is_accepted_everywhere(storage):
    storage.put("a", b"1", metadata={"icspecver": "2"})
    version = storage.put_if("b", b"1", expected=None, metadata={"icspecver": "2"})
    storage.put_if("b", b"2", expected=version, metadata={"icspecver": "2"})
    storage.put_many([("c", b"3")], metadata={"icspecver": "2"})
    assert storage.get_many(["a", "b", "c"]) == [b"1", b"2", b"3"]


def test_a_copy_is_equal_and_replaces_its_target(storage, backend):
    version = storage.put("repo", b"state")
    storage.copy("repo", "overwritten/repo.1.X")
    storage.put("repo", b"newer")
    storage.copy("repo", "overwritten/repo.1.X")
    assert storage.get("overwritten/repo.1.X").data == b"newer"
    storage.copy("repo", "overwritten/repo.2.X", expected=storage.get("repo").version)
    assert storage.get("overwritten/repo.2.X").data == b"newer"
    if backend in {"gcs", "aws"}:
        return  # these emulators ignore conditions on the source of a copy
    with pytest.raises(ConflictError):
        storage.copy("repo", "overwritten/repo.3.X", expected=version)
    assert not storage.exists("overwritten/repo.3.X")


def test_a_copy_of_nothing_is_not_found(storage):
    with pytest.raises(NotFoundError):
        storage.copy("missing", "target")


def test_a_listing_is_in_key_order_and_takes_any_prefix(storage, backend):
    if backend in {"s3", "s3fs"}:
        pytest.skip("SeaweedFS orders by folder: a/b before a-b")
    names = ["a/b", "a-b", "a.b", "a", "ab/c", "a/b-c", "a/bc", "a0", "A", "b/x/y", "é/ü"]
    # A file system has either a file or a folder of one name.
    names.remove("a")
    storage.put_many([(name, b"x") for name in names])
    assert keys(storage) == sorted(names)
    assert keys(storage, "a/") == ["a/b", "a/b-c", "a/bc"]
    assert keys(storage, "a/b") == ["a/b", "a/b-c", "a/bc"]
    assert keys(storage, "a") == ["a-b", "a.b", "a/b", "a/b-c", "a/bc", "a0", "ab/c"]
    assert keys(storage, "b/x/y") == ["b/x/y"]
    assert keys(storage, "nothing/here") == []


@pytest.mark.parametrize("after", ["a-b", "a/b", "a/b-c", "a/zzz", "a", "zzz"])
def test_a_listing_can_start_after_any_key(storage, after, backend):
    if backend in {"s3", "s3fs"}:
        pytest.skip("SeaweedFS orders by folder: a/b before a-b")
    names = sorted(["a-b", "a/b", "a/b-c", "a/bc", "a0", "b/x/y"])
    storage.put_many([(name, b"x") for name in names])
    assert keys(storage, start_after=after) == [name for name in names if name > after]
    below = [name for name in names if name.startswith("a/") and name > after]
    assert keys(storage, "a/", start_after=after) == below


def test_the_folders_of_a_repository_are_listed_in_order(storage):
    names = ["chunks/0A", "chunks/0B", "config.yaml", "manifests/9", "manifests/A", "overwritten/x"]
    names += ["repo", "snapshots/Z", "transactions/00", "transactions/0Z"]
    storage.put_many([(name, b"x") for name in reversed(names)])
    assert keys(storage) == names
    assert keys(storage, "manifests/") == ["manifests/9", "manifests/A"]
    assert keys(storage, "chunks/0") == ["chunks/0A", "chunks/0B"]
    assert keys(storage, start_after="manifests/9") == names[4:]
    assert keys(storage, "transactions/", start_after="transactions/00") == ["transactions/0Z"]


def test_a_listing_tells_size_and_time(storage):
    storage.put("chunks/A", b"12345")
    ((found,),) = storage.list("chunks/")
    assert found == storage.info("chunks/A")
    assert found == ObjectInfo("chunks/A", 5, found.modified)
    assert found.modified.tzinfo is not None
    assert abs(found.modified - datetime.now(UTC)) < timedelta(minutes=2)


def test_more_keys_than_one_page_or_one_delete_holds(opener, backend):
    storage = opener(concurrency=16)
    names = [f"chunks/{i:04}" for i in range(1203)]
    storage.put_many([(name, b"") for name in names])
    pages = [*storage.list("chunks/")]
    assert [info.key for page in pages for info in page] == names
    assert len(pages) > 1 or backend == "azure"
    resumed = keys(storage, "chunks/", start_after=pages[0][-1].key)
    assert resumed == names[len(pages[0]) :]
    result = storage.delete(names)
    assert (result.deleted, result.failures) == (1203, {})
    assert keys(storage) == []


def test_deleting_what_is_missing_is_fine(storage):
    storage.put("a", b"x")
    result = storage.delete(["a", "missing", "missing/deeper", "a"])
    assert (result.deleted, result.failures) == (3, {})
    assert storage.delete([]).deleted == 0
    assert not storage.exists("a")


BAD_KEYS = ["", "/a", "a/", "a//b", "..", "../a", "a/../b", "a/..", ".", "a/./b", "a\0b", "\ud800"]


@pytest.mark.parametrize("key", BAD_KEYS)
def test_a_key_cannot_leave_its_root(storage, key):
    for call in (
        lambda: storage.get(key),
        lambda: storage.get_range(key, 0, 1),
        lambda: storage.get_many([key]),
        lambda: storage.put(key, b"x"),
        lambda: storage.put_if(key, b"x", expected=None),
        lambda: storage.copy("a", key),
        lambda: storage.copy(key, "a"),
        lambda: storage.info(key),
        lambda: storage.exists(key),
        lambda: storage.delete([key]),
    ):
        with pytest.raises(InvalidInputError):
            call()


@pytest.mark.parametrize("prefix", ["/", "../", "a/../", "a//", "\0"])
def test_a_prefix_cannot_leave_its_root(storage, prefix):
    with pytest.raises(InvalidInputError):
        keys(storage, prefix)


def test_two_handles_see_the_same_objects(opener):
    one, other = opener(), opener()
    version = one.put_if("repo", b"1", expected=None)
    assert other.get("repo").version == version
    other.put_if("repo", b"2", expected=version)
    with pytest.raises(ConflictError):
        one.put_if("repo", b"3", expected=version)
    assert keys(one) == ["repo"]


def test_the_store_passes_the_probe_and_keeps_nothing_of_it(storage):
    probe_preconditions(storage)
    assert keys(storage) == []


async def test_every_verb_has_a_twin_to_await(storage):
    version = await storage.put_if_async("repo", b"one", expected=None)
    with pytest.raises(ConflictError):
        await storage.put_if_async("repo", b"two", expected=None)
    assert (await storage.get_async("repo")).version == version
    assert await storage.get_async("repo", known=version) is None
    await storage.put_async("a/b", b"12345")
    await storage.put_many_async([("a/c", b"678"), ("a/d", b"9")])
    assert await storage.get_range_async("a/b", 1, 2) == b"23"
    assert await storage.get_ranges_async([("a/b", 0, 1), ("a/c", 1, 2)]) == [b"1", b"78"]
    assert await storage.get_many_async(["a/d", "a/c"]) == [b"9", b"678"]
    await storage.copy_async("a/b", "a/e", expected=None)
    assert await storage.exists_async("a/e")
    assert (await storage.info_async("a/e")).size == 5
    found = [info.key async for page in storage.list_async("a/") for info in page]
    assert found == ["a/b", "a/c", "a/d", "a/e"]
    assert (await storage.delete_async(["a/b", "a/e"])).deleted == 2
    with pytest.raises(NotFoundError):
        await storage.get_async("a/e")
