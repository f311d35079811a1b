"""Writing the chunks of one task: encoded, packed, and remembered by reference."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import numpy as np

from icefloe.chunk_edits import ChunkEdits
from icefloe.config import effective
from icefloe.errors import InvalidInputError
from icefloe.format.chunk_refs import InlineRef
from icefloe.packing import Packer
from icefloe.spark.box_reading import BoxReader
from icefloe.spark.cf_packing import CfPacking
from icefloe.spark.encoding import ChunkEncoder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from icefloe.chunk_edits import Coordinates, EditColumns
    from icefloe.session import Session
    from icefloe.spark.chunk_grid import Box, ChunkGrid


class ChunkWriter:
    """Writes chunks of one array over what a session reads; the session does not change."""

    def __init__(
        self, session: Session, path: str, grid: ChunkGrid, *, decode: bool = False
    ) -> None:
        settings = effective(session.config)
        self._grid = grid
        self._reader = BoxReader(session, path)
        self._encoder = ChunkEncoder(self._reader.array)
        self._packing = CfPacking.of(self._reader.array, decode=decode)
        self._inline = settings.inline_chunk_threshold_bytes
        self._packer = Packer(
            session.context.assets,
            max_chunk_bytes=settings.packing_max_chunk_bytes if settings.packing_enabled else 0,
            target_bytes=settings.packing_target_bytes,
        )
        self._edits = ChunkEdits(len(grid.axes))
        self._runner = asyncio.Runner()
        # Packed chunks wait for nothing, so their tasks end at once.
        self._runner.get_loop().set_task_factory(asyncio.eager_task_factory)

    @property
    def fill(self) -> Any:
        return self._encoder.fill

    @property
    def dtype(self) -> np.dtype[Any]:
        return self._encoder.dtype

    @property
    def given_dtype(self) -> np.dtype[Any]:
        """Of the values that `write` takes best."""
        return self._packing.float_dtype if self._packing.attributes else self.dtype

    def write(self, elements: Box, values: Any) -> None:
        """Write a box of elements. Chunks that it covers in part keep the rest of their values.

        Raises:
            InvalidInputError: the values have another shape, or the type of the array has no room
                for one of them.
        """
        given = np.shape(values)
        shape = tuple(stop - start for start, stop in elements)
        if given not in (shape, ()):
            raise InvalidInputError(
                f"{given} values for a block of shape {shape}", kind="wrong-block-shape"
            )
        stored = np.asarray(self._packing.encode_any(values), self.dtype)
        whole = np.broadcast_to(stored, shape)
        chunks = self._grid.chunks(elements)
        outer = self._grid.elements(chunks)
        if outer != elements:
            inner = [
                slice(a - low, b - low) for (a, b), (low, _) in zip(elements, outer, strict=True)
            ]
            around = self.read(outer)
            around[tuple(inner)] = whole
            whole = around
        self.write_chunks(chunks, whole)

    def read(self, elements: Box) -> NDArray[Any]:
        """What the base has there, to be changed and written."""
        return np.array(self._reader.read(elements))

    def write_chunks(self, chunks: Box, values: NDArray[Any]) -> None:
        """Write whole chunks: `values` has all their elements, as far as the array goes."""
        try:
            self._runner.run(self._store(self._encoded(chunks, values)))
        except ExceptionGroup as failures:
            first = failures.exceptions[0]
            raise first from first.__cause__

    def finish(self) -> EditColumns:
        """Upload what is waiting; the references of all that was written."""
        self._runner.close()
        self._packer.flush()
        return self._edits.columns()

    def _encoded(
        self, chunks: Box, values: NDArray[Any]
    ) -> Iterator[tuple[Coordinates, bytes | None]]:
        for coords, part in self._grid.cut(chunks):
            yield coords, self._encoder.encode(values[part], self._grid.chunk_shape(coords))

    async def _store(self, items: Iterator[tuple[Coordinates, bytes | None]]) -> None:
        async with asyncio.TaskGroup() as group:
            for coords, data in items:
                if data is None:
                    self._edits.set(coords, None)
                elif len(data) <= self._inline:
                    self._edits.set(coords, InlineRef(data))
                elif not group.create_task(self._upload(coords, data)).done():
                    # Encoding never waits: let uploads report in between.
                    await asyncio.sleep(0)

    async def _upload(self, coords: Coordinates, data: bytes) -> None:
        self._edits.set(coords, await self._packer.write(data))
