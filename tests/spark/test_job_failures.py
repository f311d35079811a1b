"""Why a job failed reaches whoever started it: as a line, and in the repository."""

import json
from datetime import UTC, datetime

import pytest

from icefloe import InvalidInputError, NotFoundError, Repository, RepositoryConfig
from icefloe.errors import SessionStateError
from icefloe.job_reports import (
    FAILURE_PREFIX,
    JobFailure,
    delete_failure,
    find_failure,
    find_report,
    store_failure,
)
from icefloe.spark import app, maintenance_app
from spark.test_app import arguments

KEY = "day 1"

# mapInArrow looks for pandas, and pyspark has not tried the version that it finds.
pytestmark = pytest.mark.filterwarnings(
    "ignore:PySpark does not yet fully support pandas:FutureWarning"
)


@pytest.fixture
def repo(tmp_path):
    config = RepositoryConfig(inline_chunk_threshold_bytes=0)
    return Repository.create(str(tmp_path / "repo"), config=config)


@pytest.fixture
def kept(spark, monkeypatch):
    """The program uses the session of all tests, and would stop it."""
    monkeypatch.setattr(type(spark), "stop", lambda self: None)


def printed(capsys):
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith(FAILURE_PREFIX)]
    return json.loads(line.removeprefix(FAILURE_PREFIX))


@pytest.mark.parametrize(
    ("job", "type_", "kind", "told", "retryable"),
    [
        ("spark.jobs", "InvalidInputError", "invalid-input", "not MODULE:FUNCTION", False),
        ("spark.jobs:none", "InvalidInputError", "invalid-input", "no function", False),
        (
            "spark.jobs:fail_before_flush",
            "InvalidInputError",
            "wrong-job-parameters",
            "mark",
            False,
        ),
        ("spark.jobs:reach_outside", "InvalidInputError", "row-outside-array", "grid", False),
        ("spark.jobs:read_outside_a_task", "NotFoundError", "node-not-found", "/none", False),
        ("spark.jobs:fail_for_now", "ConnectionError", "job-error", "does not answer", True),
        ("spark.jobs:do_nothing", "SessionStateError", "nothing-written", "--allow-empty", True),
        ("spark.jobs:leave", "SessionStateError", "job-left", r"sys.exit(0)", True),
    ],
)
def test_a_job_tells_what_it_failed_of(repo, kept, capsys, job, type_, kind, told, retryable):
    with pytest.raises(Exception, match=r"."):
        app.main(arguments(repo, job=job))
    failure = printed(capsys)
    assert failure == find_failure(repo.storage, KEY)
    assert set(failure) == {"error"}
    said = failure["error"]
    assert (said["type"], said["kind"], said["retryable"]) == (type_, kind, retryable)
    assert told in said["message"]
    assert find_report(repo.storage, KEY) is None


def test_an_error_of_a_task_is_raised_as_itself(repo, spark):
    from icefloe import spark as ice
    from spark.jobs import create, reach_outside

    session = repo.writable_session("main")
    with pytest.raises(InvalidInputError, match="outside the grid") as caught:
        reach_outside(spark, session)
    assert caught.value.kind == "row-outside-array"
    create(session, "b")
    frame = spark.createDataFrame([(17, 0, 1.0)], "y long, x long, v double")
    with pytest.raises(InvalidInputError, match="no position in 17") as caught:
        ice.write_rows(spark, session, frame, "b", value="v")
    assert caught.value.kind == "row-outside-array"


def test_an_unknown_base_or_wrong_arguments_are_told(repo, kept, capsys):
    with pytest.raises(NotFoundError):
        app.main(arguments(repo, base="ZZZZZZZZZZZZZZZZZZZ0"))
    assert not printed(capsys)["error"]["retryable"]
    with pytest.raises(SystemExit):
        app.main([*arguments(repo), "--colour", "red"])
    assert printed(capsys)["error"] | {"message": ""} == {
        "type": "InvalidInputError",
        "kind": "wrong-arguments",
        "message": "",
        "retryable": False,
    }


def test_a_failure_is_forgotten_when_the_job_begins_again(repo, kept, capsys):
    with pytest.raises(SessionStateError):
        app.main(arguments(repo, job="spark.jobs:do_nothing"))
    assert find_failure(repo.storage, KEY) is not None
    assert app.main([*arguments(repo, job="spark.jobs:do_nothing"), "--allow-empty"]) == 0
    assert find_failure(repo.storage, KEY) is None
    assert repo.find_write(KEY) is not None


def test_maintenance_tells_what_it_failed_of_and_is_run_again(repo, kept, capsys):
    given = [
        "--task",
        "garbage_collect",
        "--url",
        repo.storage.url,
        "--report-key",
        KEY,
        "--params",
    ]
    young = datetime.now(UTC).isoformat()
    with pytest.raises(InvalidInputError):
        maintenance_app.main([*given, json.dumps({"delete_object_older_than": young})])
    failure = printed(capsys)
    assert failure == find_failure(repo.storage, KEY)
    assert "force=True" in failure["error"]["message"]
    old = {"delete_object_older_than": "2020-01-01T00:00:00Z"}
    assert maintenance_app.main([*given, json.dumps(old)]) == 0
    assert find_failure(repo.storage, KEY) is None


def test_a_failure_is_no_report_and_goes_when_it_is_deleted(repo):
    failure = JobFailure.of(TimeoutError("x" * 10_000))
    store_failure(repo.storage, KEY, failure)
    assert find_failure(repo.storage, KEY) == failure.as_json()
    assert len(failure.message) == 4000
    assert find_report(repo.storage, KEY) is None
    delete_failure(repo.storage, KEY)
    delete_failure(repo.storage, KEY)
    assert find_failure(repo.storage, KEY) is None
