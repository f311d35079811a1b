"""Python workers whose executor dies in a chosen stage, once: a `spark.python.daemon.module`.

DOOM holds JSON: `stage`, null for any; `writes`, so many writes to storage of one task land before;
`marker`, a file that tells it has happened; `victims`, how many virtual machines die: that of the
executor, and that of the worker above it.
"""

import json
import os
from itertools import count

from pyspark import TaskContext, daemon

from spark.kills import java_above, kill, watch_writes


class Doom:
    def __init__(self, stage, writes, marker, victims=1):
        self._stage = stage
        self._writes = writes
        self._marker = marker
        self._victims = victims
        self._task = None
        self._seen = count(1)

    def __call__(self, when, key):
        task = TaskContext.get()
        if when != "after" or task is None or self._stage not in (None, task.stageId()):
            return
        if task.taskAttemptId() != self._task:
            self._task, self._seen = task.taskAttemptId(), count(1)
        if next(self._seen) == self._writes:
            self._die()

    def _die(self):
        try:
            os.close(os.open(self._marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        # The worker first: it would start another executor.
        kill(*java_above()[: self._victims][::-1])


if __name__ == "__main__":
    watch_writes(Doom(**json.loads(os.environ["DOOM"])))
    daemon.manager()
