"""The classes that the provider's metadata names."""

import inspect
from importlib import import_module

from airflow.sdk import BaseOperator, BaseSensorOperator

from airflow_icechunk.get_provider_info import get_provider_info

INFO = get_provider_info()


def classes_in(kind, base):
    """The classes that a kind of module in the provider's metadata defines for users."""
    for entry in INFO[kind]:
        for name in entry["python-modules"]:
            for item in vars(import_module(name)).values():
                if inspect.isclass(item) and issubclass(item, base) and item.__module__ == name:
                    yield item


OPERATORS = [*classes_in("operators", BaseOperator)]
SENSORS = [*classes_in("sensors", BaseSensorOperator)]
TASKS = [*OPERATORS, *SENSORS]
