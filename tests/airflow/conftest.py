"""A private Airflow home, connections in the environment, and tasks without a database."""

import json
import logging
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace

import pytest
import structlog
import zarr
from structlog.testing import LogCapture

import icefloe

# Set before anything imports Airflow, which reads its configuration once.
HOME = Path(tempfile.mkdtemp(prefix="airflow-"))
os.environ["AIRFLOW_HOME"] = str(HOME)
os.environ["AIRFLOW__CORE__LOAD_EXAMPLES"] = "False"
os.environ["AIRFLOW__CORE__DAGS_FOLDER"] = str(HOME / "dags")
os.environ["AIRFLOW__LOGGING__LOGGING_LEVEL"] = "WARNING"
# Airflow 3.2 makes none up for `dag.test()`.
os.environ["AIRFLOW__API_AUTH__JWT_SECRET"] = "of-this-home-and-of-no-other-" + HOME.name


@pytest.fixture(scope="session", autouse=True)
def airflow_home():
    yield HOME
    shutil.rmtree(HOME, ignore_errors=True)


@pytest.fixture
def connect(monkeypatch):
    """Define a connection, as a deployment does it in the environment."""

    def define(conn_id="icechunk_default", conn_type="icechunk", **fields):
        value = json.dumps({"conn_type": conn_type, **fields})
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id.upper()}", value)
        return conn_id

    return define


@pytest.fixture
def repo(tmp_path, connect):
    """A repository with two arrays, behind the default connection."""
    url = str(tmp_path / "repo")
    connect(host=url)
    repository = icefloe.Repository.create(url)
    with repository.transaction("main", message="Arrays") as store:
        group = zarr.group(store)
        group.create_array("t2m", shape=(4, 2), chunks=(1, 2), dtype="f4", fill_value=0)
        group.create_array("daily/max", shape=(4,), chunks=(1,), dtype="f4", fill_value=0)
    return repository


@pytest.fixture
def stage(repo):
    """Write a row of an array to a staged snapshot; its id."""

    def write(row, value=1.0, *, base=None, path="t2m", key=None, metadata=None):
        start = {"branch": "main"} if base is None else {"snapshot_id": base}
        session = repo.writable_session(**start)
        zarr.open_array(session.store, path=path)[row] = value
        return session.flush(f"row {row}", write_key=key, metadata=metadata)

    return write


@pytest.fixture
def commit(repo):
    """Commit a row of an array to main; the new tip."""

    def write(row, value=9.0, *, path="t2m", metadata=None):
        session = repo.writable_session("main")
        zarr.open_array(session.store, path=path)[row] = value
        return session.commit(f"row {row}", metadata)

    return write


@pytest.fixture
def read(repo):
    """The values of an array on main."""

    def values(path="t2m", branch="main"):
        store = repo.readonly_session(branch).store
        return zarr.open_array(store, path=path, mode="r")[...].tolist()

    return values


@dataclass
class TaskInstance:
    """What a task instance shows to operators, over all its attempts."""

    task_id: str
    dag_id: str = "dag"
    run_id: str = "manual__2026-01-01T00:00:00+00:00"
    map_index: int = -1
    try_number: int = 1
    max_tries: int = 0
    xcoms: dict = field(default_factory=dict)
    state: dict = field(default_factory=dict)
    succeeded: int = 0
    """Instances of other tasks that succeeded."""

    def xcom_push(self, key, value):
        self.xcoms[key] = json.loads(json.dumps(value))

    def get_ti_count(self, **asked):
        assert asked["states"] == ["success"]
        assert asked["run_ids"] == [self.run_id]
        return self.succeeded

    def get_first_reschedule_date(self, context):
        return None

    def retry(self):
        self.try_number += 1

    def clear(self):
        """As Airflow does it: the tries that were used count on top of the retries."""
        self.max_tries = self.try_number
        self.try_number += 1


class StateStore:
    def __init__(self, values):
        self.values = values

    def get(self, key, default=None):
        return self.values.get(key, default)

    def set(self, key, value):
        assert value is not None
        self.values[key] = value


@pytest.fixture
def instance():
    return TaskInstance


@pytest.fixture
def run(monkeypatch):
    """Render a new operator, and run one attempt of it without a database; what it returns."""
    from airflow.sdk.bases.operator import ExecutorSafeguard
    from airflow.sdk.execution_time.context import OutletEventAccessors

    monkeypatch.setattr(ExecutorSafeguard, "test_mode", True)

    def execute(operator, ti=None, *, state_store=True):
        ti = ti or TaskInstance(operator.task_id)
        context = {
            "ti": ti,
            "task": operator,
            "dag": SimpleNamespace(dag_id=ti.dag_id),
            "run_id": ti.run_id,
            "outlet_events": OutletEventAccessors(),
            "logical_date": datetime(2026, 1, 1, tzinfo=UTC),
        }
        if state_store:
            context["task_state_store"] = StateStore(ti.state)
        operator.render_template_fields(context)
        ti.context = context
        return operator.execute(context)

    return execute


@pytest.fixture
def said(caplog):
    """What was logged since the test began, as one text."""
    configured, captured = structlog.get_config(), LogCapture()
    level = structlog.make_filtering_bound_logger(logging.INFO)
    # Airflow's own processors filter by the level that is set above.
    structlog.configure(processors=[captured], wrapper_class=level)
    with caplog.at_level("INFO"):
        yield lambda: "\n".join([*(entry["event"] for entry in captured.entries), *caplog.messages])
    structlog.configure(**configured)


@pytest.fixture
def stored():
    """A Dag as the scheduler gets it: from its serialised form."""
    from airflow.serialization import serialized_objects

    # Before Airflow 3.2 one class did both.
    kind = getattr(serialized_objects, "DagSerialization", serialized_objects.SerializedDAG)
    return lambda dag: kind.from_dict(kind.to_dict(dag))


@pytest.fixture(scope="session")
def database(airflow_home):
    """A migrated database, and the example Dags where Airflow looks for Dags; that folder."""
    from airflow.utils.db import initdb

    folder = airflow_home / "dags"
    examples = Path(__file__).parents[2] / "dags"
    ignore = shutil.ignore_patterns("__pycache__")
    shutil.copytree(examples, folder, dirs_exist_ok=True, ignore=ignore)
    initdb()
    return folder


@pytest.fixture
def dag_of(database):
    """The Dag of a file in the folder of Dags."""
    try:
        from airflow.dag_processing.dagbag import DagBag
    except ImportError:
        # Before Airflow 3.2.
        from airflow.models.dagbag import DagBag

    def load(name):
        bag = DagBag(dag_folder=str(database / f"{name}.py"), bundle_path=database)
        assert bag.import_errors == {}
        return bag.dags[name]

    return load


@pytest.fixture
def states():
    """The states of the tasks of a run."""

    def by_task(run):
        return {(ti.task_id, ti.map_index): str(ti.state) for ti in run.get_task_instances()}

    return by_task


@pytest.fixture(scope="module")
def application(database):
    """Airflow's auth manager around the pages; what it needs is imported once Airflow is set up."""
    from plugin_server import SETTINGS, make_app

    with pytest.MonkeyPatch.context() as patch:
        for name, value in SETTINGS.items():
            patch.setenv(name, value)
        yield make_app()


@pytest.fixture(scope="module")
def address(application):
    from plugin_server import serving

    with serving(application) as found:
        yield found


@pytest.fixture(scope="module")
def clients(address):
    import httpx

    from plugin_server import sign_in

    found = {role: sign_in(address, role) for role in ("op", "viewer")}
    found["nobody"] = httpx.Client(base_url=address, timeout=30)
    yield found
    for client in found.values():
        client.close()


@pytest.fixture
def op(clients, application, repo):
    # Repositories stay open for a while; every test has another one behind the same name.
    application.state.icechunk.state.repositories._open.clear()
    return clients["op"]
