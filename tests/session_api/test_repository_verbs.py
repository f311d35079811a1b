"""What a repository handle tells and keeps: graph, names, flags, metadata, status, config."""

from datetime import timedelta

import icechunk
import pytest

import icefloe
from icefloe import (
    Availability,
    InvalidInputError,
    NotFoundError,
    ReadOnlyError,
    RepositoryConfig,
)
from stateful.reading import document, group, put, regular


@pytest.fixture
def repo(tmp_path):
    return icefloe.Repository.create(tmp_path / "repo")


@pytest.fixture
def official(repo, tmp_path):
    return icechunk.Repository.open(icechunk.local_filesystem_storage(str(tmp_path / "repo")))


def commit(repo, message, branch="main"):
    session = repo.writable_session(branch)
    put(session.store, "zarr.json", group(message=message))
    return session.commit(message)


def shape(graph, names):
    """A picture with ids by the names of their commits, and without times."""
    lines = []
    for line in graph.splitlines():
        for snapshot_id, name in names.items():
            if snapshot_id in line:
                head, _, rest = line.partition(snapshot_id)
                label = rest[: rest.index(")") + 1] if rest.startswith(" (") else ""
                line = f"{head}{name}{label}"
        lines.append(line)
    return lines


def test_the_graph_shows_branches_and_tags_with_what_they_share(repo):
    names = {repo.lookup_branch("main"): "first"}
    names[one := commit(repo, "one")] = "one"
    repo.create_branch("dev", one)
    names[commit(repo, "two")] = "two"
    names[three := commit(repo, "three", "dev")] = "three"
    repo.create_tag("v1", three)
    session = repo.writable_session("main")
    put(session.store, "x/zarr.json", group())
    session.flush("on no branch")
    assert shape(repo.ancestry_graph(), names) == [
        "*  three (dev, tag: v1)",
        "| *  two (main)",
        "| /",
        "*  one",
        "*  first",
    ]
    assert shape(repo.ancestry_graph(limit=1), names) == ["*  three (dev, tag: v1)"]
    assert "three" in repo.ancestry_graph()


@pytest.mark.parametrize("name", ["", "a\nb", "\x00", "x" * 1025, "é" * 513, "tab\t"])
def test_names_that_break_other_clients_are_refused_before_anything_is_written(repo, name):
    before = [*repo.ops_log()]
    tip = repo.lookup_branch("main")
    for create in (repo.create_branch, repo.create_tag):
        with pytest.raises(InvalidInputError) as caught:
            create(name, tip)
        assert caught.value.kind == "invalid-ref-name"
    assert [*repo.ops_log()] == before


@pytest.mark.parametrize("name", ["a/b", "é" * 512, "main.2", " ", "v1.0"])
def test_other_names_are_taken_and_found_by_the_official_library(repo, official, name):
    tip = commit(repo, "one")
    repo.create_branch(name, tip)
    repo.create_tag(name, tip)
    assert official.lookup_branch(name) == tip == official.lookup_tag(name)


@pytest.mark.parametrize("who", ["ours", "official"])
@pytest.mark.parametrize("flag", ["move_node", "create_tag", "delete_tag"])
def test_a_feature_turned_off_by_either_library_is_refused_by_ours(repo, official, who, flag):
    tip = commit(repo, "one")
    repo.create_tag("v1", tip)
    acts = {
        "move_node": lambda: repo.rearrange_session("main"),
        "create_tag": lambda: repo.create_tag("v2", tip),
        "delete_tag": lambda: repo.delete_tag("v1"),
    }
    {"ours": repo, "official": official}[who].set_feature_flag(flag, False)
    assert [it.name for it in repo.disabled_feature_flags()] == [flag]
    assert [it.name for it in official.disabled_feature_flags()] == [flag]
    with pytest.raises(ReadOnlyError, match=flag) as caught:
        acts[flag]()
    assert caught.value.kind == "feature-flag-disabled"
    repo.set_feature_flag(flag, None)
    assert [it.setting for it in repo.feature_flags()] == [None] * 3
    acts[flag]()


def test_a_move_begun_before_moves_were_turned_off_is_not_committed(repo):
    with repo.transaction("main", message="nodes") as store:
        put(store, "zarr.json", group())
        put(store, "a/zarr.json", group())
    session = repo.rearrange_session("main")
    session.move("/a", "/b")
    repo.set_feature_flag("move_node", False)
    with pytest.raises(ReadOnlyError):
        session.commit("moved")
    assert repo.readonly_session("main").paths() == ["/a"]


def test_an_unknown_feature_flag_is_not_set(repo):
    with pytest.raises(NotFoundError, match="move_node"):
        repo.set_feature_flag("fly", True)


def test_metadata_is_set_updated_and_read_by_both_libraries(repo, official):
    assert repo.get_metadata() == {} == official.get_metadata()
    repo.set_metadata({"owner": "é", "list": [1, None, {"x": 1.5}]})
    assert official.get_metadata() == {"owner": "é", "list": [1, None, {"x": 1.5}]}
    official.update_metadata({"owner": "them", "more": True})
    assert repo.get_metadata() == {
        "owner": "them",
        "list": [1, None, {"x": 1.5}],
        "more": True,
    }
    assert repo.update_metadata({"list": []}) == {"owner": "them", "list": [], "more": True}
    repo.set_metadata({})
    assert official.get_metadata() == {}


def test_an_offline_repository_is_neither_read_nor_written_until_it_is_back(repo):
    tip = commit(repo, "one")
    open_before = repo.writable_session("main")
    put(open_before.store, "x/zarr.json", group())
    repo.set_status(Availability.OFFLINE, "moving house")
    for act in (
        lambda: repo.readonly_session("main"),
        lambda: repo.writable_session("main"),
        lambda: repo.create_tag("v1", tip),
        lambda: open_before.commit("late"),
        lambda: open_before.flush("late"),
    ):
        with pytest.raises(ReadOnlyError, match="moving house"):
            act()
    assert repo.get_status().reason == "moving house"
    repo.set_status(Availability.ONLINE)
    open_before.commit("back")
    assert [item.message for item in repo.ancestry(branch="main")][:2] == ["back", "one"]


def test_configuration_is_saved_for_all_and_a_handle_may_have_its_own(repo, official, tmp_path):
    path = tmp_path / "repo"
    mine = repo.reopen(RepositoryConfig(inline_chunk_threshold_bytes=7))
    assert mine.config.inline_chunk_threshold_bytes == 7
    assert icefloe.Repository.fetch_config(path).inline_chunk_threshold_bytes is None
    mine.save_config()
    assert icefloe.Repository.fetch_config(path).inline_chunk_threshold_bytes == 7
    storage = icechunk.local_filesystem_storage(str(path))
    assert icechunk.Repository.open(storage).config.inline_chunk_threshold_bytes == 7
    assert icefloe.Repository.open(path).config.inline_chunk_threshold_bytes == 7
    own = icefloe.Repository.open(path, config=RepositoryConfig(inline_chunk_threshold_bytes=0))
    assert own.config.inline_chunk_threshold_bytes == 0
    assert next(repo.ops_log()).kind.name == "CONFIG_CHANGED"


@pytest.mark.parametrize(("threshold", "kind"), [(3, "NATIVE"), (4, "INLINE")])
def test_the_threshold_of_a_handle_decides_where_a_chunk_goes(repo, threshold, kind):
    repo = repo.reopen(RepositoryConfig(inline_chunk_threshold_bytes=threshold))
    session = repo.writable_session("main")
    put(session.store, "a/zarr.json", document([2], regular(1)))
    put(session.store, "a/c/0", b"1234")
    assert session.chunk_type("/a", [0]).name == kind
    assert session.chunk_type("/a", [1]).name == "UNINITIALIZED"


def test_configuration_that_official_clients_saved_is_honoured_and_kept(tmp_path):
    config = icechunk.RepositoryConfig(inline_chunk_threshold_bytes=5, max_concurrent_requests=9)
    storage = icechunk.local_filesystem_storage(str(tmp_path))
    icechunk.Repository.create(storage, config)
    repo = icefloe.Repository.open(tmp_path)
    assert repo.config.inline_chunk_threshold_bytes == 5
    repo.reopen(RepositoryConfig(inline_chunk_threshold_bytes=6)).save_config()
    official = icechunk.Repository.open(storage)
    assert official.config.inline_chunk_threshold_bytes == 6
    assert official.config.max_concurrent_requests == 9


def test_no_repository_has_no_configuration_and_no_version(tmp_path):
    assert icefloe.Repository.fetch_config(tmp_path / "nothing") is None
    assert icefloe.Repository.fetch_spec_version(tmp_path / "nothing") is None


def test_as_of_shows_the_branch_as_it_was_in_both_libraries(repo, official):
    ids = [commit(repo, name) for name in ("one", "two", "three")]
    for snapshot_id in ids:
        when = repo.lookup_snapshot(snapshot_id).written_at
        for library in (repo, official):
            session = library.readonly_session("main", as_of=when)
            assert session.snapshot_id == snapshot_id
    first = [*repo.ancestry(branch="main")][-1].written_at
    with pytest.raises(NotFoundError):
        repo.readonly_session("main", as_of=first - timedelta(microseconds=1))
    with pytest.raises(InvalidInputError):
        repo.readonly_session(snapshot_id=ids[0], as_of=first)


def test_default_commit_metadata_stands_under_what_a_commit_says(repo):
    repo.set_default_commit_metadata({"team": "ice", "n": 0})
    session = repo.writable_session("main")
    put(session.store, "zarr.json", group())
    session.commit("one", metadata={"n": 1})
    assert next(repo.ancestry(branch="main")).metadata == {"team": "ice", "n": 1}
