"""Ordinary mistakes get an error of ours, which names the argument and the remedy."""

import asyncio
import time
from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from zarr.core.buffer import default_buffer_prototype

from icefloe import (
    ConflictDetector,
    ConflictError,
    InvalidInputError,
    MemoryStorage,
    NotFoundError,
    ReadOnlyError,
    Repository,
    Retries,
)
from icefloe.clock import parse_time
from icefloe.errors import IcefloeError
from icefloe.format.ids import SnapshotId
from icefloe.xarray import to_icechunk

SURROGATE = "\ud800"
DATASET = xr.Dataset({"q": ("x", [1])})
BUFFER = default_buffer_prototype().buffer.from_bytes


@pytest.fixture
def repo():
    repo = Repository.create(MemoryStorage())
    with repo.transaction("main", message="x") as store:
        zarr.create_array(store, name="a", data=np.arange(10.0), chunks=(5,), dimension_names=["x"])
    return repo


@pytest.fixture
def tip(repo):
    return repo.lookup_branch("main")


# Times.


@pytest.fixture(params=["America/New_York", "Asia/Tokyo"])
def local_zone(request, monkeypatch):
    monkeypatch.setenv("TZ", request.param)
    time.tzset()
    yield request.param
    monkeypatch.undo()
    time.tzset()


def test_a_local_time_at_the_ends_of_the_calendar_says_what_to_pass(repo, local_zone):
    end = datetime.min if local_zone == "Asia/Tokyo" else datetime.max
    for call in (repo.garbage_collect, repo.expire_snapshots):
        with pytest.raises(
            InvalidInputError, match=r"counts as local: say \.replace\(tzinfo=UTC\)"
        ):
            call(end)


@pytest.mark.parametrize("hours", [14, -14])
def test_a_time_out_of_the_calendar_in_utc_is_told_so(hours):
    zone = timezone(timedelta(hours=hours))
    end = (datetime.min if hours > 0 else datetime.max).replace(tzinfo=zone)
    for when in (end, end.isoformat()):
        with pytest.raises(InvalidInputError, match="is no time between the years 1 and 9999 of"):
            parse_time(when, "as_of")


def test_the_first_and_last_moment_of_utc_are_cutoffs(repo, tip):
    for when in (datetime.min, datetime.max):
        repo.expire_snapshots(when.replace(tzinfo=UTC))
    repo.garbage_collect(datetime.min.replace(tzinfo=UTC))
    assert repo.lookup_branch("main") == tip


FIRST = datetime(2026, 11, 18, 12, 0, 0, 250, UTC)
SAME = [
    FIRST,
    FIRST.replace(tzinfo=None),
    FIRST.astimezone(timezone(timedelta(hours=5))),
    "2026-11-18T12:00:00.000250",
    "2026-11-18T12:00:00.000250Z",
    "2026-11-18 17:00:00.000250+05:00",
    np.datetime64("2026-11-18T12:00:00.000250"),
    np.datetime64("2026-11-18T12:00:00.000250", "ns"),
    pd.Timestamp("2026-11-18T12:00:00.000250"),
    pd.Timestamp("2026-11-18T17:00:00.000250+05:00"),
]


@pytest.mark.parametrize("when", SAME, ids=repr)
def test_a_time_may_be_given_in_any_way_and_without_zone_is_utc(when):
    assert parse_time(when, "as_of") == FIRST


@pytest.mark.parametrize(
    ("when", "there"),
    [
        (date(2026, 11, 18), datetime(2026, 11, 18, tzinfo=UTC)),
        ("2026-11-18", datetime(2026, 11, 18, tzinfo=UTC)),
        (np.datetime64("2026-11"), datetime(2026, 11, 1, tzinfo=UTC)),
        (datetime.max, datetime.max.replace(tzinfo=UTC)),
        (datetime.min, datetime.min.replace(tzinfo=UTC)),
    ],
    ids=repr,
)
def test_a_date_is_its_first_moment(when, there):
    assert parse_time(when, "as_of") == there


@pytest.mark.parametrize("zone", ["America/New_York", "Asia/Tokyo"])
def test_the_zone_of_the_machine_does_not_count(repo, tip, zone, monkeypatch):
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        written = repo.lookup_snapshot(tip).written_at
        at = repo.readonly_session("main", as_of=written.replace(tzinfo=None))
        assert at.snapshot_id == tip
        earlier = written - timedelta(minutes=30)
        with pytest.raises(NotFoundError):
            repo.readonly_session("main", as_of=earlier.replace(tzinfo=None))
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()


@pytest.mark.parametrize("after", ["2100-01-01", np.datetime64("2100-01-01"), date(2100, 1, 1)])
def test_as_of_takes_text_dates_and_numpy_times(repo, tip, after):
    assert repo.readonly_session("main", as_of=after).snapshot_id == tip
    array = xr.open_dataset(repo, engine="icefloe", as_of=after, drop_variables=["a"])
    assert not array.variables
    with pytest.raises(NotFoundError, match="as old as"):
        repo.readonly_session("main", as_of="1999-12-31")


@pytest.mark.parametrize(
    "odd",
    [5, 1.5, "", "soon", "9999-99-99", np.datetime64("NaT", "s"), pd.NaT, b"2026", [FIRST]],
    ids=repr,
)
def test_what_is_no_time_is_told(repo, odd):
    with pytest.raises(InvalidInputError, match=r"as_of=.* is no time: pass a datetime"):
        repo.readonly_session("main", as_of=odd)
    for call in (repo.garbage_collect, repo.expire_snapshots):
        with pytest.raises(InvalidInputError, match=r"older_than=.* is no time"):
            call(odd)


# One of branch, tag and snapshot.


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"branch": 5}, "branch=5"),
        ({"branch": b"main"}, "branch=b'main'"),
        ({"branch": ["main"]}, r"branch=\['main'\]"),
        ({"tag": 5}, "tag=5"),
        ({"snapshot_id": b"ABC"}, "SnapshotId"),
        ({"snapshot_id": 7}, "SnapshotId"),
        ({"snapshot_id": "ABC"}, "20 letters"),
        ({"snapshot_id": SURROGATE * 20}, "SnapshotId"),
        ({}, "none of them"),
        ({"branch": None}, "none of them"),
        ({"branch": "main", "tag": "x"}, "not branch='main' and tag='x'"),
        ({"tag": "x", "snapshot_id": "y"}, "not tag='x' and snapshot_id='y'"),
    ],
    ids=repr,
)
def test_the_version_is_one_text(repo, arguments, told):
    with pytest.raises(InvalidInputError, match=told):
        repo.readonly_session(**arguments)


def test_an_id_may_be_the_id_itself(repo, tip):
    assert repo.readonly_session(snapshot_id=SnapshotId.parse(tip)).snapshot_id == tip


@pytest.mark.parametrize("wrong", [5, None, b"x", ["x"], SURROGATE, f"a{SURROGATE}", "", "a\nb"])
@pytest.mark.parametrize(
    "call",
    [
        lambda repo, name, tip: repo.create_branch(name, tip),
        lambda repo, name, tip: repo.create_tag(name, tip),
        lambda repo, name, tip: repo.lookup_branch(name),
        lambda repo, name, tip: repo.lookup_tag(name),
        lambda repo, name, tip: repo.delete_branch(name),
        lambda repo, name, tip: repo.delete_tag(name),
        lambda repo, name, tip: repo.reset_branch(name, tip),
        lambda repo, name, tip: repo.writable_session(name),
        lambda repo, name, tip: repo.readonly_session(tag=name),
        lambda repo, name, tip: repo.publish(name, tip),
    ],
)
def test_a_wrong_name_of_a_branch_or_tag_is_told(repo, tip, call, wrong):
    with pytest.raises((InvalidInputError, NotFoundError)):
        call(repo, wrong, tip)
    assert repo.list_branches() == {"main"}
    assert repo.list_tags() == set()


@pytest.mark.parametrize("wrong", [5, None, b"x", "ABC", SURROGATE])
@pytest.mark.parametrize(
    "call",
    [
        lambda repo, wrong: repo.create_branch("b", wrong),
        lambda repo, wrong: repo.create_tag("t", wrong),
        lambda repo, wrong: repo.reset_branch("main", wrong),
        lambda repo, wrong: repo.lookup_snapshot(wrong),
        lambda repo, wrong: repo.publish("main", wrong),
        lambda repo, wrong: repo.merge_snapshots("main", [wrong], "m"),
    ],
)
def test_a_wrong_snapshot_id_is_told(repo, tip, call, wrong):
    with pytest.raises(InvalidInputError, match="SnapshotId"):
        call(repo, wrong)
    assert repo.lookup_branch("main") == tip


# Sessions.


def test_a_conflict_says_how_to_go_on(repo):
    sessions = [repo.writable_session("main") for _ in range(2)]
    for number, session in enumerate(sessions):
        zarr.create_group(session.store, path=f"g{number}")
    sessions[0].commit("first")
    with pytest.raises(ConflictError) as caught:
        sessions[1].commit("second")
    assert "rebase_with=icefloe.ConflictDetector()" in str(caught.value)
    sessions[1].commit("second", rebase_with=ConflictDetector())


def test_a_write_after_the_commit_says_that_the_session_is_finished(repo):
    session = repo.writable_session("main")
    store = session.store
    array = zarr.open_array(store, path="a")
    array[:] = 1
    session.commit("done")
    for write in (
        lambda: array.__setitem__(slice(None), 2),
        lambda: zarr.create_group(store, path="g"),
        lambda: asyncio.run(session.store.set("g/zarr.json", BUFFER(b"{}"))),
        lambda: asyncio.run(session.store.delete("a/c/0")),
        lambda: asyncio.run(session.store.clear()),
    ):
        with pytest.raises(ReadOnlyError, match="writable_session"):
            write()
    assert (zarr.open_array(repo.readonly_session("main").store, path="a", mode="r")[:] == 1).all()


def test_a_write_after_a_transaction_says_that_it_is_finished(repo):
    with repo.transaction("main", message="x") as store:
        zarr.create_group(store, path="g")
    with pytest.raises(ReadOnlyError, match="was committed"):
        zarr.create_group(store, path="h")


def test_what_is_merged_must_be_a_fork(repo):
    session = repo.writable_session("main")
    with pytest.raises(InvalidInputError, match=r"session\.fork\(\)"):
        session.merge(repo.writable_session("main"))


@pytest.mark.parametrize(
    ("target", "told"),
    [
        (lambda repo: repo, r"repo\.writable_session\(branch\).*repo\.transaction"),
        (lambda repo: repo.writable_session("main").store, r"store\.session"),
        (lambda repo: None, "NoneType"),
        (lambda repo: "main", "str"),
    ],
)
def test_to_icechunk_wants_a_session(repo, target, told):
    with pytest.raises(InvalidInputError, match=told):
        to_icechunk(DATASET, target(repo))


def test_to_icechunk_wants_a_writable_session_and_an_xarray_object(repo):
    with pytest.raises(ReadOnlyError, match="writable_session"):
        to_icechunk(DATASET, repo.readonly_session("main"))
    with pytest.raises(InvalidInputError, match="not a list"):
        to_icechunk([1], repo.writable_session("main"))


def test_the_engine_names_the_group_that_is_missing(repo):
    with pytest.raises(NotFoundError, match=r"no group /nope .*groups: /"):
        xr.open_dataset(repo, engine="icefloe", group="nope")
    with pytest.raises(NotFoundError, match="no group /a "):
        xr.open_dataset(repo, engine="icefloe", group="a")
    with pytest.raises(NotFoundError, match="no group /nope"):
        xr.open_datatree(repo, engine="icefloe", group="nope")


def test_the_engine_takes_no_version_beside_a_session(repo):
    with pytest.raises(InvalidInputError, match="stands on its version already"):
        xr.open_dataset(repo.readonly_session("main"), engine="icefloe", branch="main")


@pytest.mark.parametrize(
    "change",
    [{"location": 5}, {"location": None}, {"offset": "0"}, {"length": 1.5}, {"offset": None}],
)
def test_a_virtual_reference_has_a_text_and_numbers(repo, change):
    given = {"location": "s3://b/x", "offset": 0, "length": 1} | change
    location = given.pop("location")
    with pytest.raises(InvalidInputError, match="a location is a str"):
        repo.writable_session("main").store.set_virtual_ref("a/c/0", location, **given)


@pytest.mark.parametrize(
    "key", ["a/c/x", "a/c/-1", "a/c/1.0", "a/c/", "a/c/00", f"a/c/{SURROGATE}"]
)
def test_a_path_in_place_of_chunk_coordinates_is_told(repo, key):
    store = repo.writable_session("main").store
    for write in (
        lambda: asyncio.run(store.set(key, BUFFER(b"x"))),
        lambda: store.set_virtual_ref(key, "s3://b/x", offset=0, length=1),
    ):
        with pytest.raises(InvalidInputError, match="is not a key"):
            write()


# Counts.


@pytest.mark.parametrize(
    "call",
    [
        lambda repo: repo.ancestry_graph(limit=-1),
        lambda repo: repo.ancestry_graph(limit="x"),
        lambda repo: repo.trim_ops_log(keep=-1),
        lambda repo: repo.expire_snapshots(datetime.now(UTC), keep_last=-1),
        lambda repo: repo.set_status("offline", "why"),
        lambda repo: to_icechunk(DATASET, repo.writable_session("main"), split_every=0),
        lambda repo: Retries(attempts="x"),
        lambda repo: Retries(attempts=0),
    ],
)
def test_odd_counts_and_states_are_told(repo, call):
    with pytest.raises(InvalidInputError):
        call(repo)


# Places.


@pytest.mark.parametrize(
    "option",
    [{"storage_options": {"a": 1}}, {"authorize_virtual_chunk_access": {}}, {"config": object()}],
)
def test_an_open_repository_takes_no_options_in_xarray(repo, option):
    for place in (repo, repo.readonly_session("main"), repo.readonly_session("main").store):
        for door in (xr.open_dataset, xr.open_datatree):
            with pytest.raises(InvalidInputError, match="storage_options, config or"):
                door(place, engine="icefloe", **option)
    with pytest.raises(InvalidInputError, match="takes no options"):
        xr.open_dataset(repo.storage, engine="icefloe", storage_options={"a": 1})


@pytest.mark.parametrize("group", [5, 0, b"a", ["a"], SURROGATE], ids=ascii)
def test_a_group_in_xarray_is_a_path(repo, group):
    with pytest.raises(InvalidInputError, match=r"group|node path"):
        xr.open_dataset(repo, engine="icefloe", group=group)
    with pytest.raises(InvalidInputError, match=r"group|node path"):
        xr.open_datatree(repo, engine="icefloe", group=group)
    if not isinstance(group, str):
        with pytest.raises(InvalidInputError, match="is no path of a group"):
            to_icechunk(DATASET, repo.writable_session("main"), group=group)


@pytest.mark.parametrize("place", [5, None, b"/tmp/x", ["x"], f"/tmp/{SURROGATE}", "", "s3://"])
@pytest.mark.parametrize("door", [Repository.open, Repository.create, Repository.exists])
def test_what_is_no_place_is_told(door, place):
    with pytest.raises(InvalidInputError):
        door(place)


def test_a_repository_is_no_place(repo):
    with pytest.raises(InvalidInputError, match="is no place"):
        Repository.open(repo)


def test_a_file_is_no_repository(tmp_path):
    (tmp_path / "file.nc").write_bytes(b"x")
    for door in (Repository.open, Repository.create, Repository.open_or_create, Repository.exists):
        with pytest.raises(
            InvalidInputError, match=r"file\.nc is a file: a repository is a folder"
        ):
            door(tmp_path / "file.nc")
    with pytest.raises(IcefloeError):
        Repository.create(tmp_path / "file.nc" / "below")
    with pytest.raises(NotFoundError, match="there is no repository"):
        Repository.open(tmp_path / "nothing")
    assert (tmp_path / "file.nc").read_bytes() == b"x"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"config": {}}, "RepositoryConfig"),
        (
            {"authorize_virtual_chunk_access": ["s3://b/"]},
            "authorize_virtual_chunk_access is a list",
        ),
    ],
)
def test_odd_arguments_of_open_are_told(repo, arguments, told):
    with pytest.raises(InvalidInputError, match=told):
        Repository.open(repo.storage, **arguments)


# Options of stores.


@pytest.mark.parametrize(
    ("url", "options", "told"),
    [
        ("s3://b/x", {"endpoint": "u"}, "no option 'endpoint'. Did you mean 'endpoint_url'"),
        ("s3://b/x", {"enpoint_url": "u"}, "'endpoint_url'"),
        ("s3://b/x", {"client_kwargs": {"regon_name": "u"}}, "client_kwargs .*'region_name'"),
        ("s3://b/x", {"config_kwargs": {"read_timeot": 1}}, "config_kwargs .*'read_timeout'"),
        ("s3://b/x", {"client_kwargs": 5}, "client_kwargs is a int"),
        ("s3://b/x", {"dedline": 5}, "'deadline'|deadline"),
        ("gs://b/x", {"tken": "anon"}, "'token'"),
        ("az://b/x", {"acount_name": "a"}, "'account_name'"),
        ("http://127.0.0.1:9/x", {"heders": {}}, "'headers'"),
        ("http://127.0.0.1:9/x", {"client_kwargs": {"ath": 1}}, "'auth'"),
        ("s3://b/x", ["anon"], "storage_options is a list"),
        ("s3://b/x", "anon", "storage_options is a str"),
    ],
)
def test_a_typo_in_the_options_is_told_with_what_is_near(url, options, told):
    with pytest.raises(InvalidInputError, match=told):
        Repository.open(url, options)


@pytest.mark.parametrize(
    "options", [{"secrt": "hunter2"}, {"client_kwargs": {"aws_secret_acess_key": "hunter2"}}]
)
def test_a_typo_in_a_secret_does_not_show_it(options):
    with pytest.raises(InvalidInputError) as caught:
        Repository.open("s3://b/x", options)
    assert "hunter2" not in str(caught.value)


def test_an_option_of_a_chained_file_system_is_told(tmp_path):
    with pytest.raises(InvalidInputError):
        Repository.open(f"zip://::file://{tmp_path}/x.zip", {"zip": {"mod": "r"}})
