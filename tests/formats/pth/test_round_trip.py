"""What torch writes is read, and what is written here torch reads, for any values."""

import io
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from feedmill.errors import DataError
from feedmill.formats.pth import dump, load
from feedmill.formats.pth.pickled import DEEPEST
from helpers.durations import examples

torch = pytest.importorskip("torch")

DTYPES = [
    np.int8, np.int16, np.int32, np.int64, np.uint8, np.uint16, np.uint32, np.uint64, np.float16, np.float32,
    np.float64, np.complex64, np.complex128, np.bool_,
]  # fmt: skip
arrays = hnp.arrays(st.sampled_from(DTYPES), hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5))
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(2**200), 2**200)
    | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=["Cs"]))
    | st.binary(max_size=20)
    | arrays
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(st.text(max_size=5) | st.integers(-5, 5), inner, max_size=4)
    ),
    max_leaves=10,
)


def same(a, b) -> bool:
    if isinstance(a, torch.Tensor):
        a = a.resolve_conj().resolve_neg().numpy() if a.dtype != torch.bfloat16 else a.view(torch.uint16).numpy()
    if isinstance(b, torch.Tensor):
        b = b.resolve_conj().resolve_neg().numpy()
    if isinstance(a, np.ndarray) or isinstance(b, np.ndarray):
        return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def as_torch(value):
    if isinstance(value, np.ndarray):
        return torch.from_numpy(value.copy()) if value.ndim else torch.from_numpy(value.reshape(1).copy())[0]
    if isinstance(value, dict):
        return {key: as_torch(item) for key, item in value.items()}
    return type(value)(map(as_torch, value)) if isinstance(value, list | tuple) else value


@given(values)
@settings(max_examples=examples(150), deadline=None)
def test_torch_writes_and_we_read(value) -> None:
    for options in ({}, {"pickle_protocol": 4}, {"_use_new_zipfile_serialization": False}):
        out = io.BytesIO()
        torch.save(as_torch(value), out, **options)
        assert same(load(out.getvalue()), value)
        assert same(load(out.getvalue(), to="torch"), value)


@given(values)
@settings(max_examples=examples(150), deadline=None)
def test_we_write_and_torch_reads(value) -> None:
    data = dump(value)
    assert dump(value) == data
    assert same(torch.load(io.BytesIO(data), weights_only=True), value)
    assert same(load(data), value)
    assert dump(as_torch(value)) == data


@given(arrays.filter(lambda a: a.ndim), st.data())
@settings(max_examples=examples(100), deadline=None)
def test_views_of_any_stride(array, data) -> None:
    slices = tuple(slice(data.draw(st.integers(0, 2)), None, data.draw(st.integers(1, 3))) for _ in range(array.ndim))
    view = torch.from_numpy(array.copy())[slices].permute(*data.draw(st.permutations(range(array.ndim))))
    for options in ({}, {"_use_new_zipfile_serialization": False}):
        out = io.BytesIO()
        torch.save(view, out, **options)
        assert same(load(out.getvalue()), view.contiguous().numpy())
        assert same(load(out.getvalue(), to="torch"), view.contiguous().numpy())
    assert same(torch.load(io.BytesIO(dump(view.numpy())), weights_only=True), view.contiguous().numpy())


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_types_that_numpy_has_not(name: str) -> None:
    tensor = torch.arange(12, dtype=torch.float32).reshape(3, 4).to(getattr(torch, name))
    out = io.BytesIO()
    torch.save(tensor, out)
    found = load(out.getvalue())
    assert found.dtype.name == name and found.astype(np.float32).tolist() == tensor.float().tolist()
    as_tensor = load(out.getvalue(), to="torch")
    assert as_tensor.dtype == tensor.dtype and as_tensor.float().equal(tensor.float())
    for value in (tensor, found):
        again = torch.load(io.BytesIO(dump(value)), weights_only=True)
        assert again.dtype == tensor.dtype and again.float().equal(tensor.float())


def test_conjugated_negated_parameters_sizes_and_state_dicts() -> None:
    z = torch.tensor([1 + 2j, 3 - 1j])
    layer = torch.nn.Linear(2, 3)
    value = {
        "c": z.conj(),
        "n": z.clone().conj().imag,
        "p": layer.weight,
        "size": torch.Size([1, 2]),
        "d": layer.state_dict(),
    }
    out = io.BytesIO()
    torch.save(value, out)
    found = load(out.getvalue())
    assert found["c"].tolist() == z.conj().tolist() and found["n"].tolist() == [-2.0, 1.0]
    assert found["p"].tolist() == layer.weight.tolist() and found["size"] == (1, 2)
    assert found["d"]["bias"].tolist() == layer.bias.tolist()


def test_numpy_arrays_and_numbers_inside() -> None:
    value = {"a": np.arange(6.0).reshape(2, 3), "f": np.asfortranarray(np.arange(6).reshape(2, 3)), "x": np.float32(2)}
    for protocol in (2, 4):
        out = io.BytesIO()
        torch.save(value, out, pickle_protocol=protocol)
        found = load(out.getvalue())
        assert found["a"].tolist() == value["a"].tolist() and found["f"].tolist() == value["f"].tolist()
        assert found["x"] == 2 and found["x"].dtype == np.float32


def test_the_remembered_layout_sees_every_other_difference() -> None:
    def saved(tensor) -> bytes:
        out = io.BytesIO()
        torch.save(tensor, out)
        return out.getvalue()

    first, second = saved(torch.arange(100)), saved(torch.arange(100) * 7)
    assert load(first).tolist() == list(range(100)) and load(second).tolist() == [7 * i for i in range(100)]
    changed = 0
    for at in range(0, len(first), 5):
        forged = bytearray(second)
        forged[at] ^= 0x55
        try:
            found = load(bytes(forged))
        except DataError:
            changed += 1
            continue
        assert isinstance(found, np.ndarray) and found.nbytes <= 800
    assert changed > 50
    half = saved(torch.arange(100, dtype=torch.float64))  # the same size, another type
    assert len(half) != len(first) or load(half).dtype == np.float64


def test_what_cannot_be_written() -> None:
    deep = []
    for _ in range(200):
        deep = [deep]
    many = [np.zeros(0, np.int8)[:] for _ in range(2**16)]
    for value in (deep, many, {1.5j: 1}, object(), np.array(["a"]), 1 << 3000, torch.eye(2).to_sparse()):
        with pytest.raises(DataError, match="cannot be written"):
            dump(value)
    assert math.isnan(load(dump(math.nan)))


def test_what_is_written_at_the_deepest_level_is_read() -> None:
    empty: list = []
    for _ in range(DEEPEST - 1):
        empty = [empty]
    assert load(dump(empty)) == empty
    with pytest.raises(DataError, match="cannot be written"):
        dump([empty])


def test_batches_of_bfloat16_become_tensors() -> None:
    from feedmill.loading.collate import collate, to_torch

    tensor = torch.arange(6, dtype=torch.float32).reshape(2, 3).to(torch.bfloat16)
    batch = to_torch(collate([{"x": load(dump(tensor))}, {"x": load(dump(tensor + 1))}]))
    assert batch["x"].dtype == torch.bfloat16 and batch["x"].float().equal(torch.stack([tensor, tensor + 1]).float())


def test_the_short_way_for_one_tensor_writes_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    base = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    tensors = [
        base, base.to(torch.bfloat16), base.to(torch.int64), base > 3, base.transpose(0, 2), base[:, ::2],
        base[1, 2, 3], torch.zeros(0, 5), base.to(torch.complex64).conj(), base.to(torch.complex64).imag,
        base.clone().requires_grad_(), torch.nn.Parameter(base), base.to(torch.float8_e4m3fn), base.to(torch.uint16),
        base.flatten(), -base.flatten(),
    ]  # fmt: skip
    for value in [*tensors, *(np.ones(shape, kind) for kind in DTYPES for shape in ((), (3,), (0, 2), (2, 5)))]:
        for _ in range(2):  # made, and from what was kept
            short = dump(value)
            monkeypatch.setattr("feedmill.formats.pth.write._FRAMED", -1)
            assert dump(value) == short
            monkeypatch.undo()
            assert same(load(short), load(dump(value)))
    assert load(dump(base.shape)) == (2, 3, 4)
