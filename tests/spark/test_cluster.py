"""A standalone cluster on loopback: executors and stragglers are lost, values are not."""

import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pyspark
import pytest

from icefloe import PackingConfig, Repository, RepositoryConfig
from icefloe.splitting import with_rule
from servers import connect_to, free_ports, running, wait_until
from spark.jobs import expected
from spark.test_app import arguments, environment, submit, values
from stateful.layout import check_layout

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SPARK_CLASS = str(Path(pyspark.__file__).parent / "bin" / "spark-class")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A master and two workers, on addresses of their own: speculation wants another host."""
    port, *pages = free_ports(4)
    url = f"spark://127.0.0.1:{port}"
    with ExitStack() as stack:

        def start(name, host, command):
            folder = tmp_path_factory.mktemp(name)
            env = environment(SPARK_LOCAL_IP=host, SPARK_HOME=str(Path(pyspark.__file__).parent))
            line = [SPARK_CLASS, f"org.apache.spark.deploy.{command[0]}", *command[1:]]
            return stack.enter_context(running(line, folder, **env)), folder

        flags = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(pages[0])]
        master, folder = start("master", "127.0.0.1", ["master.Master", *flags])
        wait_until(lambda: connect_to(port), master, folder)
        for number in (1, 2):
            host = f"127.0.0.{number + 1}"
            flags = ["--host", host, "-c", "1", "-m", "1g", "--webui-port", str(pages[number])]
            work = str(tmp_path_factory.mktemp("work"))
            worker, folder = start(
                f"worker{number}", host, ["worker.Worker", *flags, "-d", work, url]
            )

            def registered(folder=folder):
                assert "Successfully registered" in (folder / "server.log").read_text()

            wait_until(registered, worker, folder)
        yield {
            "spark.master": url,
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.executorEnv.PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
        }


@pytest.fixture
def repo(tmp_path):
    config = RepositoryConfig(inline_chunk_threshold_bytes=0, packing=PackingConfig(enabled=False))
    return Repository.create(str(tmp_path / "repo"), config=with_rule(config, "/a", (2, 3)))


def check(repo, done):
    assert done.returncode == 0, done.stderr[-4000:]
    staged = repo.find_write("day 1")
    np.testing.assert_array_equal(values(repo, staged), expected((17, 23)))
    check_layout(repo.storage, staged)
    return sum(len(page) for page in repo.storage.list("chunks/")) - 25


def test_executors_write_and_the_driver_stages(cluster, repo):
    assert check(repo, submit(arguments(repo), cluster)) == 0


def test_an_executor_that_dies_leaves_only_orphans(cluster, repo, tmp_path):
    params = json.dumps({"marker": str(tmp_path / "died")})
    done = submit(arguments(repo, job="spark.jobs:lose_executor", params=params), cluster)
    assert check(repo, done) >= 0
    assert (tmp_path / "died").exists()


def test_speculation_overtakes_a_straggler(cluster, repo):
    conf = {
        "spark.speculation": "true",
        "spark.speculation.interval": "200ms",
        "spark.speculation.multiplier": "1.5",
        "spark.speculation.quantile": "0.5",
        "spark.speculation.minTaskRuntime": "1s",
    }
    done = submit(arguments(repo, job="spark.jobs:straggle"), cluster | conf)
    assert check(repo, done) >= 0
