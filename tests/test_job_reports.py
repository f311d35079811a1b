"""Reports of jobs: found by whoever knows the key, and by nobody else."""

from datetime import UTC, datetime, timedelta

import icechunk
import pytest

from icefloe import FormatError, Repository
from icefloe.job_reports import FOLDER, delete_report, find_report, store_report
from icefloe.storage import MemoryStorage, open_storage

REPORT = {"task": "verify", "result": {"findings": [], "errors": 0}}


@pytest.fixture(params=["memory", "local", pytest.param("s3", marks=pytest.mark.s3)])
def storage(request, tmp_path):
    if request.param == "s3":
        server = request.getfixturevalue("s3_server")
        return open_storage(server.root(), server.options)
    return MemoryStorage() if request.param == "memory" else open_storage(tmp_path)


def test_a_report_is_found_under_its_key_until_it_is_deleted(storage):
    key = "dag/run 2026-11-18T00:00:00+00:00/../täsk" * 20
    assert find_report(storage, key) is None
    store_report(storage, key, {"task": "old"})
    store_report(storage, key, REPORT)
    store_report(storage, "another", {})
    assert find_report(storage, key) == REPORT
    delete_report(storage, key)
    delete_report(storage, key)
    assert find_report(storage, key) is None
    assert find_report(storage, "another") == {}


@pytest.mark.parametrize("data", [b"", b"\xff", b"[]", b"{"])
def test_what_is_no_report_is_told_apart_from_none(storage, data):
    store_report(storage, "key", REPORT)
    (place,) = [item.key for page in storage.list(FOLDER) for item in page]
    storage.put(place, data)
    with pytest.raises(FormatError, match=place):
        find_report(storage, "key")


def test_only_json_is_kept(storage):
    for report in ({"at": datetime.now(UTC)}, {"ratio": float("nan")}):
        with pytest.raises((TypeError, ValueError)):
            store_report(storage, "key", report)
    assert find_report(storage, "key") is None


def test_official_clients_leave_reports_alone(tmp_path):
    repo = Repository.create(tmp_path / "repo")
    store_report(repo.storage, "key", REPORT)
    place = icechunk.local_filesystem_storage(str(tmp_path / "repo"))
    official = icechunk.Repository.open(place)
    official.garbage_collect(datetime.now(UTC) + timedelta(days=1))
    assert official.list_branches() == {"main"}
    repo.garbage_collect(datetime.now(UTC) + timedelta(days=1), force=True)
    assert find_report(repo.storage, "key") == REPORT
