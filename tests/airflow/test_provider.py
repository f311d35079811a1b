"""What Airflow and its users may rely on: metadata, templates, triggers, defaults, docs."""

import inspect
import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import pytest
from airflow.sdk import DAG, Asset, BaseHook
from airflow.triggers.base import BaseEventTrigger, BaseTrigger

import airflow_icechunk
import icefloe
from airflow_icechunk import lineage
from airflow_icechunk.assets import icechunk_asset, icechunk_uri
from airflow_icechunk.conditions import TagExists, describe
from airflow_icechunk.decorators.icechunk import IcechunkDecoratedOperator, icechunk_task
from airflow_icechunk.events import snapshot_id_from_event
from airflow_icechunk.hooks.icechunk import IcechunkHook
from airflow_icechunk.operators.spark import IcechunkSparkSubmitOperator
from airflow_icechunk.operators.tags import IcechunkCreateTagOperator
from airflow_icechunk.retries import RULES, icechunk_default_args, icechunk_retry_policy
from airflow_icechunk.sensors.icechunk import IcechunkTagSensor
from airflow_icechunk.task_groups import icechunk_transaction
from airflow_icechunk.task_runs import TaskRun
from airflow_icechunk.triggers.icechunk import IcechunkBranchTrigger, IcechunkConditionTrigger
from provider_classes import INFO, TASKS, classes_in

PACKAGE = Path(airflow_icechunk.__file__).parent
DOCS = PACKAGE.parent / "docs" / "airflow.md"


TRIGGERS = [*classes_in("triggers", BaseTrigger)]
by_name = {"ids": lambda kind: kind.__name__}


def test_all_that_was_asked_for_is_there():
    assert {kind.__name__ for kind in TASKS} == {
        "IcechunkArraySensor",
        "IcechunkBeginOperator",
        "IcechunkBranchSensor",
        "IcechunkCommitOperator",
        "IcechunkCreateBranchOperator",
        "IcechunkCreateRepositoryOperator",
        "IcechunkCreateTagOperator",
        "IcechunkDeleteBranchOperator",
        "IcechunkDeleteTagOperator",
        "IcechunkExpireSnapshotsOperator",
        "IcechunkGarbageCollectOperator",
        "IcechunkPublishOperator",
        "IcechunkRepackOperator",
        "IcechunkResetBranchOperator",
        "IcechunkRewriteManifestsOperator",
        "IcechunkSensor",
        "IcechunkSetStatusOperator",
        "IcechunkSparkMaintenanceOperator",
        "IcechunkSparkSubmitOperator",
        "IcechunkTagSensor",
        "IcechunkTrimOpsLogOperator",
        "IcechunkVerifyOperator",
    }


@pytest.mark.parametrize("kind", ["hooks", "operators", "sensors", "triggers"])
def test_every_module_of_a_kind_is_listed(kind):
    listed = {name for entry in INFO[kind] for name in entry["python-modules"]}
    there = {
        f"airflow_icechunk.{kind}.{file.stem}"
        for file in (PACKAGE / kind).glob("*.py")
        if file.stem != "__init__"
    }
    # What operators have in common is no operator.
    assert listed == there - {"airflow_icechunk.operators.icechunk"}


def test_every_class_that_is_named_can_be_imported():
    (connection,) = INFO["connection-types"]
    (decorator,) = INFO["task-decorators"]
    (uris,) = INFO["asset-uris"]
    names = [connection["hook-class-name"], decorator["class-name"]]
    names += [uris["handler"], uris["factory"], uris["to_openlineage_converter"]]
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert hasattr(import_module(module), attribute), name


def test_the_hook_is_what_the_metadata_says():
    (connection,) = INFO["connection-types"]
    assert issubclass(IcechunkHook, BaseHook)
    assert connection["connection-type"] == IcechunkHook.conn_type
    assert connection["hook-name"] == IcechunkHook.hook_name
    assert inspect.signature(IcechunkHook).parameters[IcechunkHook.conn_name_attr]


def test_every_option_of_the_configuration_is_explained():
    for section in INFO["config"].values():
        for option in section["options"].values():
            assert {"description", "version_added", "type", "example", "default"} <= {*option}


def arguments_of(kind):
    """Enough to build one."""
    given = {"task_id": "t"}
    values = {"branch": "b", "tag": "v", "snapshot_id": "S", "snapshot_ids": ["S"], "path": "/a"}
    values |= {"job": "m:f", "status": "online", "older_than": timedelta(1)}
    values |= {"maintenance": "verify"}
    for name, parameter in inspect.signature(kind.__init__).parameters.items():
        if parameter.default is inspect.Parameter.empty and name in values:
            given[name] = values[name]
    return given


@pytest.mark.parametrize("kind", TASKS, **by_name)
def test_a_task_can_be_built_and_has_its_template_fields_without_any_connection(kind, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("a Dag is parsed often: nothing may be opened")

    monkeypatch.setattr(IcechunkHook, "get_connection", refuse)
    monkeypatch.setattr(icefloe.Repository, "open", refuse)
    task = kind(**arguments_of(kind))
    for name in task.template_fields:
        assert hasattr(task, name), name
    assert "icechunk_conn_id" in task.template_fields
    assert task.icechunk_conn_id == "icechunk_default"
    # BaseOperator has a method of this name, which a flag would hide.
    assert callable(task.dry_run)


@pytest.mark.parametrize("kind", TASKS, **by_name)
def test_template_fields_are_assigned_as_they_are(kind):
    """Templates are rendered after the constructor, which must not look at them."""
    marks = {
        name: f"{{{{ {name} }}}}"
        for name in own_arguments(kind)
        if field_of(name) in kind.template_fields
    }
    for name, mark in marks.items():
        # One after the other: some are not to be given together.
        task = kind(**{**arguments_of(kind), name: mark})
        assert getattr(task, field_of(name)) == mark


@pytest.mark.parametrize("kind", TASKS, **by_name)
def test_arguments_are_keyword_only_and_documented_where_users_look(kind):
    text = inspect.getdoc(kind)
    page = DOCS.read_text()
    if kind.__name__ != "IcechunkSensor":
        assert f"`{kind.__name__}`" in page or f"{kind.__name__}(" in page
    for name, parameter in own_arguments(kind).items():
        assert parameter.kind is inspect.Parameter.KEYWORD_ONLY, name
        assert f":param {name}:" in text, name
        assert (field_of(name) in kind.template_fields) == bool(
            re.search(rf":param {name}:(?:(?!:param).)*\(templated\)", text, re.DOTALL)
        ), name


def field_of(argument):
    """Where a task keeps an argument: `dry_run` is a method of every operator."""
    return "is_dry_run" if argument == "dry_run" else argument


def own_arguments(kind):
    """What the constructors take that this provider wrote: of the class and of its bases."""
    found = {}
    for each in kind.__mro__:
        if each.__module__.startswith("airflow_icechunk") and "__init__" in vars(each):
            found |= inspect.signature(each.__init__).parameters
    return {name: found[name] for name in found if name not in ("self", "kwargs")}


def described(text):
    return [*re.findall(r":param (\w+):", inspect.cleandoc(text))]


@pytest.mark.parametrize(
    ("function", "text", "hidden"),
    [
        (IcechunkHook.__init__, IcechunkHook.__doc__, ()),
        (IcechunkBranchTrigger.__init__, IcechunkBranchTrigger.__doc__, ()),
        (IcechunkConditionTrigger.__init__, IcechunkConditionTrigger.__doc__, ()),
        # Airflow passes them on from the call of the function.
        (IcechunkDecoratedOperator.__init__, icechunk_task.__doc__, ("op_args", "op_kwargs")),
        (icechunk_transaction, icechunk_transaction.__doc__, ()),
        (icechunk_asset, icechunk_asset.__doc__, ()),
        (icechunk_default_args, icechunk_default_args.__doc__, ()),
        (snapshot_id_from_event, snapshot_id_from_event.__doc__, ()),
    ],
    ids=lambda value: getattr(value, "__qualname__", ""),
)
def test_every_argument_of_what_is_no_task_is_described_and_no_other(function, text, hidden):
    taken = {*inspect.signature(function).parameters} - {"self", "kwargs", *hidden}
    assert {*described(text)} - {"kwargs"} == taken


@pytest.mark.parametrize("kind", TASKS, **by_name)
def test_no_argument_is_described_that_a_task_does_not_take(kind):
    assert {*described(kind.__doc__)} - {"kwargs"} <= {*own_arguments(kind)}


@pytest.mark.parametrize("kind", TASKS, **by_name)
def test_every_argument_is_in_the_documentation(kind):
    page = DOCS.read_text()
    named = {*re.findall(r"`(\w+)(?:=[^`]*)?`", page), *re.findall(r"\b(\w+)=", page)}
    assert {*own_arguments(kind)} - named == set()


def test_the_table_of_the_transaction_is_its_signature():
    head = "| argument of `icechunk_transaction` | default | meaning |\n|---|---|---|\n"
    _, _, rest = DOCS.read_text().partition(head)
    rows = [row.split("|")[1:3] for row in rest.partition("\n\n")[0].splitlines()]
    table = {name.strip(" `"): default.strip() for name, default in rows}

    def shown(parameter):
        if parameter.default is parameter.empty:
            return "required"
        default = parameter.default
        return f'`"{default}"`' if isinstance(default, str) else f"`{default}`"

    parameters = inspect.signature(icechunk_transaction).parameters
    assert table == {name: shown(parameter) for name, parameter in parameters.items()}


def test_sensors_are_deferrable_if_the_configuration_says_so():
    """Asked in a process of its own, because the default is read once."""
    program = (
        "from airflow_icechunk.sensors.icechunk import IcechunkTagSensor\n"
        "print(IcechunkTagSensor(task_id='t', tag='v').deferrable)"
    )
    for setting in ("True", "False"):
        done = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE": setting},
            capture_output=True,
            text=True,
            check=True,
        )
        assert done.stdout.split()[-1] == setting


def some_trigger(kind):
    if kind is IcechunkConditionTrigger:
        return kind(
            icechunk_conn_id="c", condition=describe(TagExists(tag="v1")), poll_interval=3.0
        )
    return kind(
        icechunk_conn_id="c",
        branch="dev",
        after="A" * 19 + "0",
        initial="head",
        every_snapshot=False,
        path="/p",
        metadata={"k": [1]},
        contains="C" * 19 + "0",
        once=True,
        poll_interval=3.0,
        event_interval=9.0,
    )


@pytest.mark.parametrize("kind", TRIGGERS, **by_name)
def test_a_trigger_serialises_to_just_the_arguments_of_its_constructor(kind):
    classpath, arguments = some_trigger(kind).serialize()
    assert classpath == f"{kind.__module__}.{kind.__name__}"
    names = [name for name in inspect.signature(kind.__init__).parameters if name != "self"]
    assert sorted(arguments) == sorted(names)
    assert kind(**json.loads(json.dumps(arguments))).serialize() == (classpath, arguments)


def test_one_trigger_serves_sensors_and_watchers():
    assert issubclass(IcechunkBranchTrigger, BaseEventTrigger)
    two = IcechunkBranchTrigger(branch="a").serialize(), IcechunkBranchTrigger().serialize()
    assert BaseEventTrigger.hash(*two[0]) != BaseEventTrigger.hash(*two[1])


def test_assets_have_one_spelling():
    asset = icechunk_asset(icechunk_conn_id="era5", branch="dev", path="/a/b/")
    assert asset.uri == "icechunk://era5/a/b?branch=dev"
    assert Asset("icechunk://era5/a/b/?branch=dev").uri == asset.uri
    assert Asset("icechunk://era5").uri == icechunk_uri(icechunk_conn_id="era5")
    with pytest.raises(ValueError, match="connection"):
        Asset("icechunk:///a/b")


has_policies = pytest.mark.skipif(
    icechunk_retry_policy() is None, reason="retry policies came with Airflow 3.3"
)


def decision(error):
    from airflow.sdk.definitions.retry_policy import RetryAction

    decided = icechunk_retry_policy().evaluate(error, 1, 3)
    assert decided.action in (RetryAction.RETRY, RetryAction.FAIL)
    return decided.action is RetryAction.RETRY


@has_policies
def test_a_retry_is_worth_it_only_where_it_may_help():
    assert decision(icefloe.ConflictError("moved"))
    assert decision(icefloe.RebaseFailedError("S", []))
    assert decision(icefloe.ThrottledError("slow down"))
    assert decision(icefloe.StorageError("reset"))
    assert not decision(icefloe.PermissionDeniedError("no"))
    assert not decision(icefloe.NotFoundError("nothing"))
    assert not decision(icefloe.FormatError("garbage"))
    assert decision(icefloe.UnknownOutcomeError("maybe"))


def test_every_error_of_icefloe_has_a_rule_and_every_rule_an_error():
    named = {name for names, _, _ in RULES for name in names}
    for name in named:
        assert issubclass(getattr(icefloe, name.removeprefix("icefloe.")), icefloe.IcefloeError)
    direct = {f"icefloe.{kind.__name__}" for kind in icefloe.IcefloeError.__subclasses__()}
    assert direct - named == {"icefloe.SessionStateError"}


def test_default_args_bring_the_policy_along():
    task = IcechunkCreateTagOperator(task_id="t", tag="v", **icechunk_default_args(retries=5))
    assert task.retries == 5
    assert getattr(task, "retry_policy", None) is not None or icechunk_retry_policy() is None


def test_the_policy_survives_the_serialisation_of_a_dag(stored):
    with DAG("d", default_args=icechunk_default_args()) as dag:
        IcechunkCreateTagOperator(task_id="t", tag="v")
        IcechunkSparkSubmitOperator(task_id="s", job="m:f")
        IcechunkTagSensor(task_id="w", tag="v")
    assert {*stored(dag).task_dict} == {"t", "s", "w"}


def test_keys_differ_where_writes_do():
    one = TaskRun(
        dag_id="d", run_id="r", task_id="t", map_index=-1, try_number=1, tries_before_clear=0
    )
    retried = replace(one, try_number=2)
    assert one.write_key("x") == retried.write_key("x")
    others = [
        replace(one, dag_id="e"),
        replace(one, run_id="s"),
        replace(one, task_id="u"),
        replace(one, map_index=0),
        replace(one, tries_before_clear=1),
    ]
    keys = {run.write_key("x") for run in others} | {one.write_key(), one.merge_key("x")}
    assert len(keys | {one.write_key("x")}) == 8


def test_lineage_names_places_as_spark_does(monkeypatch):
    """A stand-in for the OpenLineage client, which not everyone installs."""
    made = SimpleNamespace(
        Dataset=lambda **fields: fields,
        DatasetVersionDatasetFacet=lambda **fields: fields,
        OperatorLineage=lambda outputs: outputs,
    )
    monkeypatch.setattr(lineage, "import_module", lambda name: made)
    found = lineage.dataset("s3://bucket/prefix/era5", path="/t2m", snapshot_id="S")
    assert (found["namespace"], found["name"]) == ("s3://bucket", "prefix/era5/t2m")
    assert found["facets"] == {"version": {"datasetVersion": "S"}}
    local = lineage.dataset("file:///data/repo")
    assert (local["namespace"], local["name"]) == ("file", "/data/repo")


def test_without_openlineage_an_operator_tells_nothing(repo, run):
    operator = IcechunkCreateTagOperator(task_id="t", tag="v1")
    assert operator.get_openlineage_facets_on_complete(None) is None
    run(operator)
    assert operator.get_openlineage_facets_on_complete(None) is None


def blocks():
    return re.findall(r"^```py\n(.*?)^```", DOCS.read_text(), re.DOTALL | re.MULTILINE)


def test_the_examples_of_the_documentation_build(monkeypatch, airflow_home):
    """In order: later examples use what earlier ones made."""
    namespace = {}
    assert len(blocks()) >= 10
    for block in blocks():
        exec(compile(block, str(DOCS), "exec"), namespace)
