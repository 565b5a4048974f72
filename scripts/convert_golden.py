#!/usr/bin/env python3
"""Turns golden.npz and golden.json of the reference run into files that the tests read without numpy.

golden.bin: all arrays one after the other, little-endian float32 or int32. golden.index.json: for each array its byte
offset, dtype and shape. prompts.json: the prompts with their ids and 48 greedy ids.

Example: convert_golden.py --npz golden.npz --json golden.json --out engine/testdata/golden
"""
import argparse
import json
import pathlib

import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--npz", type=pathlib.Path, required=True)
    parser.add_argument("--json", type=pathlib.Path, required=True)
    parser.add_argument("--out", type=pathlib.Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    index = {}
    blob = bytearray()
    with np.load(args.npz) as arrays:
        for name in sorted(arrays.files):
            a = arrays[name]
            dtype = {"f": "<f4", "i": "<i4"}[a.dtype.kind]
            index[name] = {"offset": len(blob), "dtype": dtype[1:], "shape": list(a.shape)}
            blob += np.ascontiguousarray(a, dtype=dtype).tobytes()
    (args.out / "golden.bin").write_bytes(bytes(blob))
    (args.out / "golden.index.json").write_text(json.dumps({"arrays": index}, indent=1) + "\n")

    cases = json.loads(args.json.read_text())["cases"]
    (args.out / "prompts.json").write_text(json.dumps({"cases": cases}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
