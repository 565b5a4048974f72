#!/usr/bin/env python3
"""Self test of gguf_file.py. Needs numpy (exit 77 without it) and the shipped model.

Literal: one Q4_0 and one Q8_0 block written by hand. Golden: the shipped model is read, every tensor is dequantised,
quantised again and written, and the file must come out byte for byte. Dequantised values sit on their block's grid
with the extreme element on code 0 (Q4_0), so quantising them again is exact; a changed rule, nibble order, key order
or padding shows at once.
"""
import os
import pathlib
import sys
import tempfile
import unittest

try:
    import numpy as np
except ImportError:
    print("skipped: this python has no numpy")
    sys.exit(77)

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import gguf_file as gguf  # noqa: E402

MODEL = pathlib.Path(__file__).resolve().parents[2] / "engine/models/tiny-gemma4-moe-q4_0.gguf"


class Blocks(unittest.TestCase):
    def test_q4_0_block_is_as_written_by_hand(self):
        # d = 0.5; elements 0..15 are codes 0..15, elements 16..31 are codes 15..0. The extreme is -4.0 = -8 d.
        values = np.array([(c - 8) * 0.5 for c in list(range(16)) + list(range(15, -1, -1))], np.float32)
        raw = gguf.quantise_q4_0(values)
        self.assertEqual(raw[:2], np.float16(0.5).tobytes())
        self.assertEqual(list(raw[2:]), [c | ((15 - c) << 4) for c in range(16)])
        back = gguf.dequantise(gguf.Tensor("t", (32,), gguf.Q4_0, raw))
        self.assertTrue(np.array_equal(back, values))

    def test_q8_0_block_is_as_written_by_hand(self):
        values = np.array([127, -127, 1, 0] + [0] * 28, np.float32) * np.float32(0.25)
        raw = gguf.quantise_q8_0(values)
        self.assertEqual(raw[:2], np.float16(0.25).tobytes())
        self.assertEqual(list(raw[2:6]), [127, 129, 1, 0])

    def test_all_zero_block_has_zero_scale(self):
        for kind in (gguf.Q4_0, gguf.Q8_0):
            raw = gguf.quantise(np.zeros(32, np.float32), kind)
            back = gguf.dequantise(gguf.Tensor("t", (32,), kind, raw))
            self.assertTrue(np.array_equal(back, np.zeros(32, np.float32)))

    def test_write_refuses_data_that_does_not_fit_the_shape(self):
        with tempfile.TemporaryDirectory() as folder, self.assertRaisesRegex(ValueError, "blk.0.x"):
            gguf.write(os.path.join(folder, "x.gguf"), {}, [gguf.Tensor("blk.0.x", (2, 32), gguf.Q4_0, b"\0" * 18)])


class ShippedModel(unittest.TestCase):
    def test_rewriting_from_dequantised_tensors_gives_the_same_bytes(self):
        self.assertTrue(MODEL.exists(), f"{MODEL} is part of the tree")
        metadata, tensors = gguf.read(MODEL)
        for t in tensors:
            t.data = gguf.quantise(gguf.dequantise(t), t.type)
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "again.gguf")
            gguf.write(path, metadata, tensors)
            with open(path, "rb") as f:
                again = f.read()
        self.assertTrue(again == MODEL.read_bytes(), "rewritten model differs")

    def test_holds_the_tensors_of_the_architecture(self):
        metadata, tensors = gguf.read(MODEL)
        names = {t.name for t in tensors}
        layers = metadata["gemma4.block_count"].value
        local = metadata["gemma4.attention.sliding_window_pattern"].value
        self.assertEqual(layers, len(local))
        for layer, is_local in enumerate(local):
            self.assertEqual(f"blk.{layer}.attn_v.weight" in names, is_local)
        self.assertEqual(len(tensors), 22 * sum(local) + 21 * (layers - sum(local)) + 3)


if __name__ == "__main__":
    unittest.main()
