"""PyTorch's ``.pth``: tensors, numbers, text, lists, tuples and dicts, read without running code.

Two layouts of `torch.save`:

zip (since torch 1.6)
    A zip of stored (never compressed) entries below one folder: ``data.pkl``, a pickle of protocol 2 to 5;
    ``data/<key>``, the bytes of one storage each, aligned to 64; ``byteorder`` (default ``little``).
    In the pickle, a storage is the persistent id ``("storage", class, key, location, elements)``.
legacy
    Consecutive pickles: a magic number, the protocol 1001, facts about the machine, the value, a list of keys;
    then for each key the number of elements (int64) and the bytes. There may be views: ``(key, offset, elements)``.

A tensor is ``_rebuild_tensor_v2(storage, offset, shape, strides, ...)``: offsets and strides count elements.

The pickle is interpreted by `feedmill.formats.pth.pickled`. It rejects opcodes that data does not need, and names other
than those of tensors, storages, dtypes, ``OrderedDict``, ``set``, ``complex`` and NumPy data, with an error that names
them. Also rejected: compressed, encrypted, overlapping or duplicate entries, missing or too short storages, tensors
beyond their storage, values that contain themselves, and values that would be far larger in memory than they are
stored. Checksums of the zip are not verified, because torch may omit them.

Tensors become read-only NumPy arrays that share the file's bytes; ``bfloat16`` and the float8 types are those of
``ml_dtypes``. With ``to="torch"``, they become tensors with their own memory. Sparse and quantized tensors, and
TorchScript programs, are rejected.
"""

from feedmill.formats.pth.read import load
from feedmill.formats.pth.write import dump

__all__ = ["dump", "load"]
