"""A standalone cluster on loopback: a master, and workers that come and go."""

import os
import sys
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path

import pyspark

import servers
from servers import connect_to, free_ports, running, wait_until
from spark.test_app import environment

HOME = Path(pyspark.__file__).parent
# As an administrator would: by the environment of the machines, never by the application.
CREDENTIALS = {"AWS_ACCESS_KEY_ID": servers.KEY, "AWS_SECRET_ACCESS_KEY": servers.SECRET}


class Cluster:
    """Workers have addresses of their own: Spark speculates on another host only."""

    def __init__(self, folder, stack):
        self.folder = folder
        self._stack = stack
        self._hosts = count(2)
        port, page = free_ports(2)
        self.url = f"spark://127.0.0.1:{port}"
        flags = ["--host", "127.0.0.1", "--port", str(port), "--webui-port", str(page)]
        master, place = self._start("127.0.0.1", "master.Master", *flags)
        wait_until(lambda: connect_to(port), master, place)

    def add_worker(self):
        (page,) = free_ports(1)
        host = f"127.0.0.{next(self._hosts)}"
        flags = ["--host", host, "-c", "1", "-m", "1g", "--webui-port", str(page)]
        flags += ["-d", str(self.folder / host / "work")]
        worker, place = self._start(host, "worker.Worker", *flags, self.url)

        def registered():
            assert "Successfully registered" in (place / "server.log").read_text()

        wait_until(registered, worker, place)

    def conf(self, **more):
        """What an application is told; underscores in names stand for dots."""
        return {
            "spark.master": self.url,
            "spark.ui.enabled": "false",
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.memory": "512m",
            "spark.executor.memory": "512m",
            "spark.executor.cores": "1",
            "spark.executorEnv.PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
            **{f"spark.{name.replace('_', '.')}": value for name, value in more.items()},
        }

    def _start(self, host, name, *flags):
        place = self.folder / host
        place.mkdir()
        env = environment(SPARK_LOCAL_IP=host, SPARK_HOME=str(HOME), **CREDENTIALS)
        command = [str(HOME / "bin" / "spark-class"), f"org.apache.spark.deploy.{name}", *flags]
        return self._stack.enter_context(running(command, place, **env)), place


@contextmanager
def standalone(folder):
    """A master and two workers of one core each."""
    with ExitStack() as stack:
        cluster = Cluster(folder, stack)
        cluster.add_worker()
        cluster.add_worker()
        yield cluster
