# Writes the files of this directory with Python's library:
#
#   python3 -m venv env && env/bin/pip install safetensors==0.8.0 numpy ml_dtypes && env/bin/python golden.py
import ml_dtypes
import numpy as np
from safetensors.numpy import save_file

save_file({}, "empty.safetensors")
save_file({"w": np.array([[1, -2.5], [np.inf, 65504]], np.float16)}, "plain.safetensors")
save_file(
    {
        "scalar": np.array(-0.75, np.float64),
        "none": np.zeros((0, 3), np.float32),
        "f32": np.array([[1, 2, 3], [4, 5, 1 / 3]], np.float32),
        "bf16": np.array([1, -2.5, 1 / 3], ml_dtypes.bfloat16),
        "ids": np.array([-1, 1 << 40], np.int64),
        "mask": np.array([True, False, True]),
        "größe \"x\"\n": np.array([7], np.uint8),
    },
    "mixed.safetensors",
    {"format": "np", "note": "naïve \U0001f642 \\ tab\t"},
)
