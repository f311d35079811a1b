"""What the commands do: up, down, status."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from stack import airflow_services, postgres, processes, seaweedfs, spark, state
from stack.airflow_services import RANK as AIRFLOW_RANK
from stack.keys import load_or_generate
from stack.layout import BUCKET, Layout
from stack.ports import PREFERRED, choose
from stack.supervisor import StartError, Supervisor

if TYPE_CHECKING:
    from collections.abc import Iterator

    from stack.component import Component
    from stack.state import State

NOTHING_RUNS = 3
"""The exit code of `status` where there is nothing to show."""
_START_SECONDS = 240
_GRACE_SECONDS = 20
_PROJECT = Path(__file__).parents[1]


def up(folder: Path, dags: Path, *, airflow_only: bool = False) -> int:
    """Start what does not run, wait until all is healthy, and say where it is.

    A stack that cannot be started as a whole is stopped again. One that ran before is left alone.
    """
    _create(folder)
    with _opened(folder) as (remembered, supervisor):
        ran = any(supervisor.is_running(name) for name in remembered.processes)
        if not ran:
            # Other programs may have taken some ports since.
            remembered.ports = choose({**PREFERRED, **remembered.ports})
            remembered.dags = str(dags)
            remembered.airflow_only = airflow_only
        layout = _layout(folder, remembered)
        try:
            _start(layout, remembered, supervisor)
        except BaseException as error:
            if not ran:
                print("stopping what was started ...", file=sys.stderr)
                supervisor.stop(grace=_GRACE_SECONDS)
            if not isinstance(error, StartError | RuntimeError):
                raise
            print(f"\n{error}", file=sys.stderr)
            return 1
    print(_welcome(layout))
    return 0


def down(folder: Path) -> int:
    """Stop all processes; data and logs stay."""
    if not folder.exists():
        print("nothing is running")
        return 0
    with _opened(folder, forget_unreadable=True) as (remembered, supervisor):
        names = [name for name in remembered.processes if supervisor.is_running(name)]
        supervisor.stop(grace=_GRACE_SECONDS)
    print(f"stopped {', '.join(names)}" if names else "nothing is running")
    return 0


def status(folder: Path) -> int:
    """Show each component; 0 only if all are healthy, `NOTHING_RUNS` if none runs."""
    remembered = state.read(folder / "state.json")
    refs = {started.ref for started in remembered.processes.values()}
    if not processes.running(refs):
        ended = f"; all {len(refs)} processes of {folder} have ended" if refs else ""
        print(f"nothing is running{ended}: make up")
        return NOTHING_RUNS
    layout = _layout(folder, remembered)
    all_healthy = True
    print(f"{'component':16} {'pid':>8} {'port':>6}  health")
    for each in _components(layout, remembered.database):
        started = remembered.processes.get(each.name)
        health = "not started"
        if started is not None:
            alive = processes.running({started.ref})
            health = "ended" if not alive else "healthy" if each.is_healthy() else "not healthy"
        all_healthy = all_healthy and health == "healthy"
        pid = "-" if started is None else started.ref.pid
        print(f"{each.name:16} {pid:>8} {each.port or '-':>6}  {health}")
    print(_welcome(layout))
    return 0 if all_healthy else 1


def _start(layout: Layout, remembered: State, supervisor: Supervisor) -> None:
    _choose_database(layout, remembered)
    components = _components(layout, remembered.database)
    starting = [each for each in components if not supervisor.is_running(each.name)]
    if starting:
        print(f"starting {', '.join(each.name for each in starting)}; logs in {layout.logs}")
        supervisor.start(each for each in components if each.rank < AIRFLOW_RANK)
        needed = [each for each in components if each.name in ("postgres", "seaweedfs")]
        supervisor.wait(needed, seconds=_START_SECONDS)
        _prepare(layout, remembered.database, supervisor)
        supervisor.start(components)
    supervisor.wait(
        components,
        seconds=_START_SECONDS,
        report=lambda each, seconds: print(f"  {each.name} is healthy after {seconds:.0f} s"),
    )


def _choose_database(layout: Layout, remembered: State) -> None:
    if remembered.database == "sqlite":
        return
    try:
        postgres.create(layout)
    except postgres.UnavailableError as error:
        if remembered.database == "postgres":
            raise RuntimeError(f"this stack was made with PostgreSQL, but {error}") from None
        print(f"using SQLite, not PostgreSQL: {error}")
        remembered.database = "sqlite"
    else:
        remembered.database = "postgres"


def _prepare(layout: Layout, database: str, supervisor: Supervisor) -> None:
    environment = layout.environment(
        **airflow_services.settings(layout, database),
        **airflow_services.connections(layout),
        **({} if layout.airflow_only else {**layout.s3_environment(), "STACK_BUCKET": BUCKET}),
        STACK_ADMIN_PASSWORD=layout.keys.admin_password,
    )
    with open(supervisor.log("prepare"), "ab") as log:
        done = subprocess.run(
            [sys.executable, "-m", "stack.prepare"],
            cwd=_PROJECT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            check=False,
        )
    if done.returncode:
        raise StartError(f"Airflow's database was not prepared.\n{supervisor.tail('prepare')}")
    print("  database and connections are ready")


def _components(layout: Layout, database: str) -> list[Component]:
    databases = [postgres.server(layout)] if database == "postgres" else []
    others = [] if layout.airflow_only else [seaweedfs.server(layout), *spark.cluster(layout)]
    return [*databases, *others, *airflow_services.services(layout, database)]


def _layout(folder: Path, remembered: State) -> Layout:
    keys = load_or_generate(folder / "keys.json")
    return Layout(
        folder=folder,
        dags=Path(remembered.dags),
        ports=remembered.ports,
        keys=keys,
        airflow_only=remembered.airflow_only,
    )


def _create(folder: Path) -> None:
    # The user that runs PostgreSQL has to pass through; what is inside is private.
    folder.mkdir(mode=0o711, parents=True, exist_ok=True)
    for name in ("airflow", "logs", "run", "seaweedfs", "spark"):
        (folder / name).mkdir(mode=0o700, exist_ok=True)


@contextlib.contextmanager
def _opened(folder: Path, *, forget_unreadable: bool = False) -> Iterator[tuple[State, Supervisor]]:
    path = folder / "state.json"
    with state.locked(folder / "lock"):
        try:
            remembered = state.read(path)
        except state.UnreadableError:
            if not forget_unreadable:
                raise
            # Processes bear the mark of their stack: they are found without it.
            remembered = state.State()
        yield remembered, Supervisor(folder, remembered, lambda: state.write(path, remembered))


def _welcome(layout: Layout) -> str:
    login = f"login {airflow_services.USER} / {layout.keys.admin_password}"
    places = {"Airflow": f"{layout.url('api')}    {login}"}
    if not layout.airflow_only:
        places["Spark"] = f"{layout.url('spark-master-ui')}    {spark.master_url(layout)}"
        places["S3"] = f"{layout.url('s3')}    bucket {BUCKET}"
    places |= {"Dags": str(layout.dags), "Logs": str(layout.logs)}
    return "\n" + "".join(f"{name:13} {place}\n" for name, place in places.items())
