# Writes the arrays of this directory with the libraries that define their formats:
#
#   python3 -m venv env && env/bin/pip install safetensors==0.8.0 numpy==2.4.6 torch && env/bin/python golden.py
import numpy as np
import torch
from numpy.lib import format
from safetensors.torch import save_file


def values(dtype):
    """Six numbers as a matrix of three rows, which the test knows."""
    x = np.arange(6).reshape(3, 2)
    if dtype == "bool":
        return x % 2 == 1
    if dtype.startswith("uint"):
        return x.astype(dtype) + (np.iinfo(dtype).max - 5)
    return (x / 4 - 1 if "float" in dtype else x - 2).astype(dtype)


floats = ["float16", "float32", "float64"]
integers = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "bool"]
for dtype in floats + integers:
    np.save(f"npy/{dtype}.npy", values(dtype))
for version in [1, 2, 3]:
    with open(f"npy/version{version}.npy", "wb") as f:
        format.write_array(f, values("float32"), version=(version, 0))
np.save("npy/vector.npy", np.array([3, 1, 2], np.int32))
np.save("npy/cube.npy", np.arange(12, dtype=np.float32).reshape(3, 2, 2))
np.save("npy/bad_scalar.npy", np.float32(3))
np.save("npy/bad_empty.npy", np.zeros((0, 3), np.float32))
np.save("npy/bad_fortran.npy", np.asfortranarray(values("float32")))
np.save("npy/bad_bigendian.npy", values("float32").astype(">f4"))
np.save("npy/bad_uint64.npy", values("uint64"))
np.save("npy/bad_text.npy", np.array(["a", "b"]))
np.save("npy/bad_object.npy", np.array([None, {}]))
np.save("npy/bad_structure.npy", np.zeros(3, [("x", "<f4"), ("y", "<i8", (2,))]))
rows = {d: values(d) for d in floats + integers + ["uint64"]}
rows["vector"] = np.array([3, 1, 2], np.int32)
rows["four"] = np.zeros((4, 2), np.float32)
rows["scalar"] = np.array(1, np.float32)
rows["none"] = np.zeros((0, 2), np.float32)
tensors = {name: torch.from_numpy(x) for name, x in rows.items()}
tensors["bfloat16"] = torch.from_numpy(values("float32")).to(torch.bfloat16)
save_file(tensors, "rows.safetensors")
