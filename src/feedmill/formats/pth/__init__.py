"""PyTorch's ``.pth``: tensors, numbers, text, lists, tuples and dicts, read without running anything.

Two layouts of `torch.save`:

zip (since torch 1.6)
    A zip of stored (never compressed) entries below one folder: ``data.pkl``, a pickle of protocol 2 to 5;
    ``data/<key>``, the bytes of one storage each, aligned to 64; ``byteorder`` (``little`` where it is absent).
    In the pickle a storage is the persistent id ``("storage", class, key, location, elements)``.
legacy
    Pickles one after the other: a magic number, the protocol 1001, facts of the machine, the value, a list of keys;
    then for each key the number of elements (int64) and the bytes. There may be views: ``(key, offset, elements)``.

A tensor is ``_rebuild_tensor_v2(storage, offset, shape, strides, ...)``: offsets and strides count elements.

The pickle is interpreted here (`feedmill.formats.pth.pickled`): opcodes outside the list of those that data needs, and
names other than those of tensors, storages, dtypes, ``OrderedDict``, ``set``, ``complex`` and NumPy's data
are refused with an error that says which. Refused too are compressed, encrypted, overlapping or duplicate entries,
storages that are absent or too short, tensors beyond their storage, values that contain themselves, and values that
would be far larger written out than they are stored. Checksums of the zip are not compared: torch may leave them out.

Tensors become NumPy arrays that share the file's bytes and cannot be written to; ``bfloat16`` and the float8 types are
those of ``ml_dtypes``. With ``to="torch"`` they become tensors of their own memory. Sparse and quantized tensors, and
TorchScript programs, are refused.
"""

from feedmill.formats.pth.read import load
from feedmill.formats.pth.write import dump

__all__ = ["dump", "load"]
