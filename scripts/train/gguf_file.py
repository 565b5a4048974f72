"""GGUF v3 with the three tensor types of the shipped model (F32, Q4_0, Q8_0): read, write, quantise, dequantise.

Needs numpy only. Used by train.py (export) and golden.py (import); tested by gguf_file_test.py, which rewrites the
shipped model byte for byte.
"""
import dataclasses
import struct

import numpy as np

ALIGNMENT = 32
F32, Q4_0, Q8_0 = 0, 2, 8  # tensor types
BLOCK = {F32: (1, 4), Q4_0: (32, 18), Q8_0: (32, 34)}  # type -> elements and bytes of a block

# Metadata value types. Arrays are (ARRAY, element type).
U8, I8, U16, I16, U32, I32, FLOAT32, BOOL, STRING, ARRAY, U64, I64, FLOAT64 = range(13)
SCALAR = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", FLOAT32: "<f", BOOL: "<?",
          U64: "<Q", I64: "<q", FLOAT64: "<d"}


@dataclasses.dataclass
class Tensor:
    """One tensor as stored. `shape` is row-major (the file stores it reversed); `data` holds the raw blocks."""
    name: str
    shape: tuple
    type: int
    data: bytes


@dataclasses.dataclass
class Value:
    """One metadata value with its type; `element` is the element type of an array."""
    type: int
    value: object
    element: int = -1


def quantise_q4_0(weights):
    """Raw Q4_0 blocks of an array whose last dimension is a multiple of 32.

    The element of largest magnitude gets the code 0 (value -8 d), so d = that element / -8, stored as half; codes
    are rounded half up. Byte j of a block holds element j (low nibble) and element j + 16 (high nibble).
    """
    blocks = np.ascontiguousarray(weights, dtype=np.float32).reshape(-1, 32)
    extreme = blocks[np.arange(len(blocks)), np.abs(blocks).argmax(axis=1)]
    d = (extreme / -8).astype(np.float32)
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
    codes = np.clip(np.trunc(blocks * inverse[:, None] + np.float32(8.5)), 0, 15).astype(np.uint8)
    packed = codes[:, :16] | (codes[:, 16:] << 4)
    return np.concatenate([d.astype("<f2").view(np.uint8).reshape(-1, 2), packed], axis=1).tobytes()


def quantise_q8_0(weights):
    """Raw Q8_0 blocks: d = largest magnitude / 127, stored as half; codes rounded half to even."""
    blocks = np.ascontiguousarray(weights, dtype=np.float32).reshape(-1, 32)
    d = (np.abs(blocks).max(axis=1) / 127).astype(np.float32)
    inverse = np.divide(np.float32(1), d, out=np.zeros_like(d), where=d != 0)
    codes = np.round(blocks * inverse[:, None]).astype(np.int8)
    return np.concatenate([d.astype("<f2").view(np.uint8).reshape(-1, 2), codes.view(np.uint8)], axis=1).tobytes()


def quantise(weights, kind):
    if kind == F32:
        return np.ascontiguousarray(weights, dtype="<f4").tobytes()
    return {Q4_0: quantise_q4_0, Q8_0: quantise_q8_0}[kind](weights)


def dequantise(tensor):
    """The tensor as float32, in its row-major shape."""
    if tensor.type == F32:
        return np.frombuffer(tensor.data, "<f4").reshape(tensor.shape).copy()
    raw = np.frombuffer(tensor.data, np.uint8).reshape(-1, BLOCK[tensor.type][1])
    d = raw[:, :2].copy().view("<f2").astype(np.float32)
    codes = raw[:, 2:]
    if tensor.type == Q4_0:
        values = np.concatenate([codes & 15, codes >> 4], axis=1).astype(np.float32) - 8
    elif tensor.type == Q8_0:
        values = codes.copy().view(np.int8).astype(np.float32)
    else:
        raise ValueError(f"{tensor.name}: tensor type {tensor.type} is not one of F32, Q4_0, Q8_0")
    return (values * d).reshape(tensor.shape)


def _text(s):
    raw = s.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(kind, value):
    return _text(value) if kind == STRING else struct.pack(SCALAR[kind], value)


def write(path, metadata, tensors):
    """Writes {key: Value} and [Tensor] in their order. Tensors lie in file order without gaps beyond the padding."""
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, v in metadata.items():
        head.append(_text(key) + struct.pack("<I", v.type))
        if v.type == ARRAY:
            head.append(struct.pack("<IQ", v.element, len(v.value)))
            head.extend(_value(v.element, x) for x in v.value)
        else:
            head.append(_value(v.type, v.value))
    offset = 0
    for t in tensors:
        per_block, block_bytes = BLOCK[t.type]
        count = int(np.prod(t.shape))
        if t.shape[-1] % per_block != 0 or count // per_block * block_bytes != len(t.data):
            raise ValueError(f"{t.name}: {len(t.data)} bytes do not fit shape {t.shape} of type {t.type}")
        head.append(_text(t.name) + struct.pack("<I", len(t.shape)))
        head.extend(struct.pack("<Q", n) for n in reversed(t.shape))
        head.append(struct.pack("<IQ", t.type, offset))
        offset += len(t.data) + -len(t.data) % ALIGNMENT
    header = b"".join(head)
    with open(path, "wb") as f:
        f.write(header + b"\0" * (-len(header) % ALIGNMENT))
        for t in tensors:
            f.write(t.data + b"\0" * (-len(t.data) % ALIGNMENT))


class _Cursor:
    def __init__(self, data):
        self.data, self.at = data, 0

    def take(self, count):
        if count > len(self.data) - self.at:
            raise ValueError(f"file ends inside a value at byte {self.at}")
        self.at += count
        return self.data[self.at - count:self.at]

    def scalar(self, fmt):
        return struct.unpack(fmt, self.take(struct.calcsize(fmt)))[0]

    def text(self):
        return self.take(self.scalar("<Q")).decode()

    def value(self, kind):
        return self.text() if kind == STRING else self.scalar(SCALAR[kind])


def read(path):
    """({key: Value}, [Tensor]) of a file written by `write` or by llama.cpp with these tensor types. This reader
    serves the recipe and trusts its input; the engine's reader is the one that faces strangers."""
    with open(path, "rb") as f:
        cursor = _Cursor(f.read())
    if cursor.take(4) != b"GGUF" or cursor.scalar("<I") not in (2, 3):
        raise ValueError(f"{path}: not a GGUF file of version 2 or 3")
    tensor_count, key_count = cursor.scalar("<Q"), cursor.scalar("<Q")
    metadata = {}
    for _ in range(key_count):
        key, kind = cursor.text(), cursor.scalar("<I")
        if kind == ARRAY:
            element, count = cursor.scalar("<I"), cursor.scalar("<Q")
            metadata[key] = Value(ARRAY, [cursor.value(element) for _ in range(count)], element)
        else:
            metadata[key] = Value(kind, cursor.value(kind))
    infos = []
    for _ in range(tensor_count):
        name = cursor.text()
        dims = [cursor.scalar("<Q") for _ in range(cursor.scalar("<I"))]
        infos.append((name, tuple(reversed(dims)), cursor.scalar("<I"), cursor.scalar("<Q")))
    start = cursor.at + -cursor.at % ALIGNMENT
    tensors = []
    for name, shape, kind, offset in infos:
        if kind not in BLOCK:
            raise ValueError(f"{name}: tensor type {kind} is not one of F32, Q4_0, Q8_0")
        per_block, block_bytes = BLOCK[kind]
        cursor.at = start + offset
        tensors.append(Tensor(name, shape, kind, cursor.take(int(np.prod(shape)) // per_block * block_bytes)))
    return metadata, tensors
