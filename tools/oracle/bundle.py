"""Files of an oracle folder: X.json with X.bin, raw little-endian arrays at multiples of 64 bytes."""

import json
import pathlib

import numpy as np


class Bundle:
    def __init__(self, folder, name):
        self.path = pathlib.Path(folder) / name
        self.arrays = {}
        self.blob = bytearray()

    def add(self, name, values, dtype):
        data = np.ascontiguousarray(np.asarray(values), dtype=np.dtype(dtype).newbyteorder("<"))
        self.blob.extend(b"\0" * (-len(self.blob) % 64))
        self.arrays[name] = {"dtype": dtype, "shape": list(data.shape), "offset": len(self.blob), "bytes": data.nbytes}
        self.blob.extend(data.tobytes())

    def write(self, manifest):
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.with_suffix(".bin").write_bytes(bytes(self.blob))
        write_json(
            self.path,
            manifest
            | {
                "bin": {
                    "file": self.path.name + ".bin",
                    "byte_order": "little",
                    "alignment": 64,
                    "bytes": len(self.blob),
                },
                "arrays": self.arrays,
            },
        )


def number(value):
    """JSON has no infinities and NaN: they are strings."""
    value = float(value)
    return value if np.isfinite(value) else str(value)


def write_json(path, manifest):
    path = pathlib.Path(path).with_suffix(".json")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(manifest, separators=(",", ":")) + "\n")
