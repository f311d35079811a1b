"""The data source `doomed`: `icechunk`, but a write dies at a chosen moment of a chosen batch.

Options: `dies_in` (the batch; any for a batch write), `dies_at` (which of its moments, in order:
the task begins, the task ends, the commit begins, before and after each write to storage in it, the
commit ends) and `victims` (more processes that die: `all` adds the virtual machine and its driver).
"""

import psutil
from pyspark import TaskContext

from icefloe.spark import IcechunkDataSource
from icefloe.spark.row_sink import RowSink
from icefloe.spark.row_stream_sink import RowStreamSink
from spark.kills import At, java_above, kill, watch_writes

TASK = 2
"""So many moments are in the task."""


class Fate:
    def __init__(self, options):
        self.batch = options.get("dies_in")
        self.number = int(options.get("dies_at", -1))
        self.victims = options.get("victims")

    def die(self):
        if self.victims == "all":
            machine = java_above()[0]
            kill(psutil.Process(machine).ppid(), machine)
        kill()

    def task(self, work):
        if self.number == 0:
            self.die()
        found = work()
        if self.number == 1:
            self.die()
        return found

    def commit(self, work):
        moment = At(self.number - TASK, self.die)
        moment()
        watch_writes(moment)
        work()
        moment()


class DoomedSink(RowSink):
    def write(self, iterator):
        return Fate(self.options).task(lambda: super(DoomedSink, self).write(iterator))

    def commit(self, messages):
        Fate(self.options).commit(lambda: super(DoomedSink, self).commit(messages))


class DoomedStreamSink(RowStreamSink):
    def write(self, iterator):
        fate = Fate(self.options)
        batch = TaskContext.get().getLocalProperty("streaming.sql.batchId")
        if batch != fate.batch:
            return super().write(iterator)
        return fate.task(lambda: super(DoomedStreamSink, self).write(iterator))

    def commit(self, messages, batch_id):
        fate = Fate(self.options)
        if str(batch_id) != fate.batch:
            return super().commit(messages, batch_id)
        return fate.commit(lambda: super(DoomedStreamSink, self).commit(messages, batch_id))


class DoomedDataSource(IcechunkDataSource):
    @classmethod
    def name(cls):
        return "doomed"

    def writer(self, schema, overwrite):
        return DoomedSink(dict(self.options), schema)

    def streamWriter(self, schema, overwrite):  # noqa: N802
        return DoomedStreamSink(dict(self.options), schema)
