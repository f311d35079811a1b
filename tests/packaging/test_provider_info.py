"""Airflow discovers the provider, cheaply."""

import json
import os
import subprocess
import sys
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path

import jsonschema

from airflow_icechunk.get_provider_info import get_provider_info


def run(program: str, tmp_path) -> str:
    """The output of a fresh interpreter whose Airflow home is a folder of this test."""
    return subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "AIRFLOW_HOME": str(tmp_path)},
    ).stdout


def test_the_entry_point_leads_to_the_provider_info():
    (entry,) = (
        entry
        for entry in entry_points(group="apache_airflow_provider")
        if entry.value.startswith("airflow_icechunk.")
    )
    assert entry.load() is get_provider_info


def test_the_plugin_has_an_entry_point_of_its_own():
    """Airflow does not load the plugins that provider infos name, unless it is told to."""
    (entry,) = (
        entry
        for entry in entry_points(group="airflow.plugins")
        if entry.value.startswith("airflow_icechunk.")
    )
    assert entry.value == "airflow_icechunk.plugin.icechunk_plugin:IcechunkPlugin"
    assert "plugins" not in get_provider_info()


def test_the_provider_info_satisfies_the_schema_of_airflow():
    # Found, not imported: importing airflow writes its configuration into the user's home.
    airflow = Path(find_spec("airflow").origin).parent
    schema = json.loads((airflow / "provider_info.schema.json").read_text())
    jsonschema.validate(get_provider_info(), schema)


def test_airflow_lists_the_provider(tmp_path):
    program = (
        "from airflow.providers_manager import ProvidersManager\n"
        "print(ProvidersManager().providers['airflow-icechunk'].data['name'])"
    )
    assert run(program, tmp_path).splitlines()[-1] == "Icechunk"


def test_asking_for_the_provider_info_imports_neither_airflow_nor_icefloe(tmp_path):
    program = (
        "import sys, airflow_icechunk.get_provider_info\n"
        "print(*sorted({name.split('.')[0] for name in sys.modules}))"
    )
    assert not {"airflow", "icefloe", "numpy"} & set(run(program, tmp_path).split())
