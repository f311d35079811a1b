"""From the values of one chunk to the bytes of one object, by the array's own codecs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
from zarr.core.array import create_codec_pipeline
from zarr.core.array_spec import ArrayConfig, ArraySpec
from zarr.core.buffer import default_buffer_prototype
from zarr.core.sync import sync

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import zarr
    from numpy.typing import NDArray
    from zarr.core.metadata.v3 import ArrayV3Metadata

    type Call = Callable[[Any, ArraySpec], Any]
    """The plain function of a codec: encodes or decodes one chunk."""


class ChunkCodecs:
    """The codecs of one array, and what each of them is told of a chunk."""

    def __init__(self, array: zarr.Array[Any]) -> None:
        # Icechunk stores arrays of version 3 only.
        metadata = cast("ArrayV3Metadata", array.metadata)
        self.dtype: np.dtype[Any] = metadata.data_type.to_native_dtype()
        self.fill = metadata.fill_value
        self._data_type = metadata.data_type
        self._prototype = default_buffer_prototype()
        pipeline: Any = create_codec_pipeline(metadata)
        self._pipeline = pipeline
        self._specs: dict[tuple[int, ...], list[ArraySpec]] = {}

    def _calls(self, name: str) -> list[Call] | None:
        """A plain function of each codec; None if one of them must be awaited."""
        calls = []
        for codec in self._pipeline:
            call = getattr(codec, name, None)
            if call is None or not getattr(codec, "_sync_capable", True):
                return None
            calls.append(call)
        return calls

    def _specs_of(self, shape: tuple[int, ...]) -> list[ArraySpec]:
        """What each codec is told of a chunk of this shape."""
        if shape not in self._specs:
            spec = self._spec(shape)
            specs = []
            for codec in self._pipeline:
                specs.append(spec)
                spec = codec.resolve_metadata(spec)
            self._specs[shape] = specs
        return self._specs[shape]

    def _spec(self, shape: tuple[int, ...]) -> ArraySpec:
        config = ArrayConfig.from_dict({})
        return ArraySpec(shape, self._data_type, self.fill, config, self._prototype)


class ChunkEncoder(ChunkCodecs):
    """Encodes chunks of one array.

    zarr's own pipeline passes every chunk through an event loop and a thread, which costs a small
    chunk ten times its encoding; codecs that can do without are called directly.
    """

    def __init__(self, array: zarr.Array[Any]) -> None:
        super().__init__(array)
        self._direct = self._calls("_encode_sync")

    def encode(self, values: NDArray[Any], shape: Sequence[int]) -> bytes | None:
        """The bytes of a chunk; None if all of it is fill value, so that it needs none.

        Args:
            values: those inside the array.
            shape: of the whole chunk, which may reach over the array's end.
        """
        buffer = self._prototype.nd_buffer.from_ndarray_like(values)
        if buffer.all_equal(self.fill):
            return None
        if values.shape != tuple(shape):
            whole = np.full(shape, self.fill, self.dtype)
            whole[tuple(slice(0, n) for n in values.shape)] = values
            buffer = self._prototype.nd_buffer.from_ndarray_like(whole)
        data = self._encoded(buffer, self._specs_of(tuple(shape)))
        return None if data is None else data.to_bytes()

    def _encoded(self, buffer: Any, specs: list[ArraySpec]) -> Any:
        if self._direct is None:
            (data,) = sync(self._pipeline.encode([(buffer, specs[0])]))
            return data
        for call, spec in zip(self._direct, specs, strict=True):
            buffer = call(buffer, spec)
            if buffer is None:
                return None
        return buffer
