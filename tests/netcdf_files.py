"""NetCDF 4 files for the example of a virtual ingest."""

import h5py


def save_rain(path, values):
    """A file with one variable, `rain` of two dimensions."""
    with h5py.File(path, "w") as file:
        rain = file.create_dataset("rain", data=values.astype("f4"), chunks=values.shape)
        for axis, name in enumerate(["lat", "lon"]):
            scale = file.create_dataset(name, data=range(values.shape[axis]))
            scale.make_scale(name)
            rain.dims[axis].attach_scale(scale)
        rain.attrs["units"] = "mm/day"
