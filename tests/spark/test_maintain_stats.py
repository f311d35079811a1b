"""Storage statistics on Spark: the numbers of one machine."""

from pathlib import Path
from tempfile import TemporaryDirectory

import icechunk
import pytest
from hypothesis import HealthCheck, given, settings

import official_repos
import servers
from icefloe import Repository
from icefloe import spark as ice
from icefloe.errors import InvalidInputError
from icefloe.storage import open_storage
from maintenance.histories import build, plans
from maintenance.messy import Messy
from maintenance.test_backends import keys, upload

BREAKDOWNS = ["repository", "array", "snapshot", "branch"]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """Arrays of inline, native and virtual chunks, in split manifests."""
    arrays = {
        "scalar": official_repos.ArrayPlan((), (), ("inline",)),
        "g/mixed": official_repos.ArrayPlan((9, 7), (2, 2), ("inline", "native", "virtual")),
        "g/other": official_repos.ArrayPlan((9, 7), (2, 2), ("virtual", "native")),
        "empty": official_repos.ArrayPlan((0, 3), (1, 1), ("missing",)),
    }
    plan = official_repos.RepositoryPlan(
        groups=("g",), arrays=arrays, split=2, branches=("b",), tags=("t",), deleted_tags=()
    )
    return official_repos.build(tmp_path_factory.mktemp("mixed") / "repo", plan).path


@pytest.mark.parametrize("by", BREAKDOWNS)
def test_all_kinds_of_chunks_are_counted_as_on_one_machine(spark, by, mixed):
    repo = Repository.open(mixed)
    found = ice.maintain.stats(spark, repo, by)
    assert found == repo.chunk_storage_stats(by)
    assert any(row.native_bytes and row.virtual_bytes for row in found)
    assert keys(repo.storage, "icefloe/") == set()


@given(plans)
@settings(
    max_examples=2,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
def test_any_history_is_measured_as_on_one_machine(spark, plan):
    with TemporaryDirectory() as name:
        repo = Repository.open(build(Path(name, "repo"), plan).path)
        for by in ("snapshot", "branch"):
            assert ice.maintain.stats(spark, repo, by) == repo.chunk_storage_stats(by)


def test_an_empty_repository_needs_nothing(spark, tmp_path):
    icechunk.Repository.create(icechunk.local_filesystem_storage(str(tmp_path / "repo")))
    assert ice.maintain.stats(spark, Repository.open(tmp_path / "repo")) == ()


def test_there_is_no_other_breakdown(spark, mixed):
    with pytest.raises(InvalidInputError, match="colour"):
        ice.maintain.stats(spark, Repository.open(mixed), "colour")


@pytest.mark.s3
def test_on_s3_the_numbers_are_the_same(spark, s3_server, tmp_path):
    options = dict(s3_server.options)
    del options["key"], options["secret"]
    storage = open_storage(s3_server.root(), options, credentials=servers.credentials)
    messy = Messy(tmp_path / "repo")
    upload(messy.path, storage)
    expected = Repository.open(messy.path).chunk_storage_stats("snapshot")
    assert ice.maintain.stats(spark, Repository.open(storage), "snapshot") == expected
