"""Measure every kernel beside the same source compiled by numba, on this processor:

    python -m benchmarks.kernels [--only text.] [--repeat 9] [--json FILE]

Calls of the functions around kernels are recorded over generated data, and the longest call of each kernel is then
measured: both sides alternate in one process, on copies of the same arguments, and the best processor time of each
counts. Results must be equal.
"""

from __future__ import annotations

import argparse
import io
import json
import random
import sys
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parents[1] / "tools"))

from kernels.by_numba import by_numba

from feedmill.kernels.native import Kernel

_TEXT = """the of and to in is was that for it with as his on be at by had not are but from or have an they which one
were größe naïve café 日本 東京 Москва слово 😀 javascript {x} e.g. 3.14 can't well-known http://a.example #tag … - *"""
WORDS = _TEXT.split()


def texts(count: int, seed: int = 1) -> list[str]:
    rng = random.Random(seed)

    def line() -> str:
        return " ".join(rng.choices(WORDS, k=rng.randrange(1, 18)))

    made = ["\n".join(line() for _ in range(rng.randrange(1, 30))) for _ in range(count)]
    made[0] += "\n" + "ha " * 2000 + "\n" + "".join(str(n.bit_count() & 1) for n in range(1 << 14))  # repetitions
    return made


def run_text() -> None:
    from feedmill.kernels.bounds import bounds_of
    from feedmill.kernels.text import c4, characters, gopher, hints, lengths, paragraphs, repetitions, wordbreak

    made = texts(3000)
    codes, offsets = lengths.encode(made)
    table = characters.table()
    (starts, ends), first = lengths.words(codes, offsets, table)
    lengths.paragraphs(codes, offsets, table)
    lengths.count_pieces(codes, offsets[:-1], offsets[1:], table)
    lengths.stripped_lengths(codes, offsets, table)
    lengths.byte_lengths(codes, offsets)
    gopher.word_signals(codes, offsets, starts, ends, first, table)
    gopher.line_signals(codes, offsets, np.diff(bounds_of(ends - starts)[first]), True)
    hints.hints(codes, offsets[:-1], offsets[1:], table)
    found = c4.automaton(frozenset(WORDS[:20]), ["phrase of", "two words"])
    c4.flags(codes, offsets, table, *found)
    c4.lines(codes, offsets, table)
    repetitions.repetitions(codes, offsets[:-1], offsets[1:], table)
    text = repetitions._room_for_long_units(int(offsets[1]))
    repetitions._long_units(codes[: offsets[1]], table, *text)
    data, bounds = np.frombuffer("".join(made).encode(), np.uint8), bounds_of([len(text.encode()) for text in made])
    index, pages = wordbreak.tables()
    wordbreak.count_segments(data, bounds[:-1], bounds[1:], index, pages)
    wordbreak.count_words(data, bounds[:-1], bounds[1:], index, pages, 10)
    spans = np.empty((2, len(data) + 1), np.int64)
    wordbreak.words(data, 0, len(data), index, pages, *spans, 0)
    room = np.empty((6, len(data)), np.int64)
    separator = np.frombuffer(b"\n", np.uint8)
    count = paragraphs.pieces(data, bounds, separator, paragraphs.CHARACTERS, *room)
    lows, highs = (room[k, :count].copy() for k in (3, 4))
    paragraphs.all_blank(data, lows, highs, index, pages)
    parts, keys = np.empty((2, 2, len(data)), np.int64)
    paragraphs.ngrams(data, lows, highs, np.ones(count, np.bool_), 5, 1, 0, False, index, pages, parts, keys)


def run_hashing() -> None:
    from feedmill.kernels.bounds import bounds_of
    from feedmill.kernels.hashing import ahash, crc32c, murmur, near_pairs, shingles

    made = [text.encode() for text in texts(2000, 2)]
    data, bounds = np.frombuffer(b"".join(made) + bytes(16), np.uint8), bounds_of([len(text) for text in made])
    crc32c.crc32c(data)
    cuts = np.sort(np.random.default_rng(1).integers(0, bounds[-1], 100_000))
    lows, highs = cuts[:-1].copy(), cuts[1:].copy()
    firsts, counts = np.arange(len(lows) - 4), np.full(len(lows) - 4, 3)
    keys = np.random.default_rng(2).integers(0, 2**63, (4, 12)).astype(np.uint64)
    bits, hashes = np.empty((len(firsts), 12), np.uint64), np.empty(len(firsts), np.uint64)
    ahash.positions(data, lows, highs, firsts, counts, keys, np.uint64(1 << 20), bits, hashes)
    ahash.look_up(
        np.zeros(1 << 20, np.uint32), bits, np.ones(len(bits), np.bool_), False, np.empty(len(bits), np.bool_)
    )
    pairs = np.empty((len(firsts), 2), np.uint64)
    murmur.hash_keys(data, lows, highs, firsts, counts, pairs)
    murmur.first_seen(pairs, np.zeros((1 << 18, 2), np.uint64), True, np.empty(len(pairs), np.bool_))
    murmur.partition(pairs, 56, np.empty(257, np.int64), np.empty(len(pairs), np.uint32))
    where, pages = shingles.characters()
    n = len(made)
    bands, sets = np.empty((9, n), np.uint64), np.empty(len(data) // 2 + n, np.uint64)
    set_ends, digests, sizes = np.empty(n, np.int64), np.empty(n, np.uint64), np.empty(n, np.int64)
    shingles.sketch(data, bounds, 5, where, pages, *shingles.permutations(108), bands, sets, set_ends, digests, sizes)
    near_pairs.reach(5000)
    keys_of = np.sort(np.random.default_rng(3).integers(0, 3000, 60_000)).astype(np.uint64)
    digests = np.random.default_rng(4).integers(0, 2**62, len(keys_of)).astype(np.uint64)
    columns = np.random.default_rng(5).integers(0, 500, (3, len(keys_of))).astype(np.uint64)
    found, _ = near_pairs.candidates(keys_of, np.ones(len(keys_of), np.bool_), digests, columns)
    near_pairs.components(len(keys_of), found)
    some = np.random.default_rng(6).integers(0, n, (20_000, 2))
    starts = bounds_of(np.diff(set_ends, prepend=0))
    near_pairs.similar(sets, starts[:-1], np.diff(starts), some, some, 0.3, np.arange(n))


def run_jsonl() -> None:
    from feedmill.kernels.jsonl import jsonlines, jsontexts, plainrows, rawtexts, spanlists, spanrows, spans

    made = texts(3000, 3)
    rows = [json.dumps({"id": str(i), "text": text}, ensure_ascii=False) for i, text in enumerate(made)]
    lines = "".join(row + "\n" for row in rows).encode()
    jsonlines.plain_lines(np.frombuffer(lines, np.uint8))
    jsontexts.TextTaker("text").take(lines)
    plainrows.plain_rows(lines)
    lifted = rawtexts.lift(lines)
    assert lifted is not None
    quoted = [lines[low:high] for low, high in lifted.texts if low >= 0]
    rng = random.Random(4)
    lists = [[[a := rng.randrange(400), a + rng.randrange(40), rng.random()] for _ in range(30)] for _ in quoted]
    packed = spanlists.pack([json.dumps(sorted(one)).encode() for one in lists])
    assert packed is not None
    chosen = spanlists.choose([packed], [(0.2, 0.9)], len(quoted))
    rawtexts.cut(quoted, chosen, [b"|||"], 5)
    first = np.arange(0, 30 * len(quoted) + 1, 30)
    flat = np.array([span for one in lists for span in one])
    start, end = (flat[:, k].astype(np.int64) for k in (0, 1))
    kinds, which = np.arange(len(flat)) % 3, np.full(len(flat), -1)
    heads, head_bounds = np.frombuffer(b'"a":["b":["c":[', np.uint8), np.array([0, 5, 10, 15])
    none = np.zeros(1, np.uint8)
    spans.fragments(first, kinds, start, end, end, none, np.zeros(1, np.int64), which, heads, head_bounds)
    ids, id_ends = np.frombuffer(b'"id"' * len(quoted), np.uint8), np.arange(4, 4 * len(quoted) + 1, 4)
    marks = np.frombuffer(b'{"attributes":{"d":[{"attributes":{]},"id":},"id":}\n', np.uint8)
    mark_ends = np.cumsum([len(b'{"attributes":{"d":['), len(b'{"attributes":{'), len(b']},"id":'), len(b'},"id":'), 2])
    scores, row = np.frombuffer(b"1", np.uint8), np.repeat(np.arange(len(quoted)), 30)
    out = np.empty(80 * len(flat) + 80 * len(quoted), np.uint8)
    spanrows.fill_rows(
        ids, id_ends, np.zeros(len(quoted), np.bool_), row, start, end, np.zeros(len(flat), np.int64), scores,
        np.ones(1, np.int64), marks, mark_ends, out,
    )  # fmt: skip


def run_files() -> None:
    from feedmill.kernels.files import btree, pairs, ranges, tar, tar_many, text_order
    from feedmill.kernels.native import address_of

    rng = np.random.default_rng(1)
    blob = io.BytesIO()
    with tarfile.open(fileobj=blob, mode="w", format=tarfile.USTAR_FORMAT) as out:
        for i in range(4000):
            for part in ("jpg", "json"):
                info = tarfile.TarInfo(f"dir{i % 7}/sample{i:06d}.{part}")
                info.size = int(rng.integers(300))
                out.addfile(info, io.BytesIO(bytes(info.size)))
    data = np.frombuffer(blob.getvalue(), np.uint8)
    scan = tar.scan(data)
    starts, n = scan.starts, len(scan.starts) - 1
    header, members = np.empty(512, np.uint8), np.empty((4 * n, 4), np.int64)
    rest = np.empty(n + 1, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    tar_many.plain_samples(starts[:-1] + address_of(data), np.diff(starts), header, address_of(header), members, *rest)
    lengths = rng.integers(1, 70_000, 300_000)
    first = np.cumsum(lengths) - lengths
    list(pairs.decode([b"".join(pairs.encode(first, lengths))]))
    keys = [f"dir{i % 7}/sample{i * 7919 % 100_000:06d}" for i in range(100_000)]
    text = np.frombuffer("".join(key + "\0" for key in keys).encode(), np.uint8)
    begins = np.cumsum([0, *(len(key) + 1 for key in keys)])
    order, _ = text_order.sort_texts(text, begins)
    text_order._strictly_ascending(text, begins)
    text_order.compare(text, 0, 20)
    ints = np.sort(rng.integers(0, 10**6, (2, len(keys))))
    text_order._ascending(ints)
    text_order.sort_groups(ints[:1] // 40, ints[1:], text, begins, np.arange(len(keys)))
    columns = btree.Columns(ints, text, begins)
    with open("/dev/null", "wb") as sink:
        _without_writing(btree, sink.fileno(), columns, order)
    btree.varint_width(300)
    btree.put_varint(np.empty(9, np.uint8), 0, 300)
    source, target = np.arange(1 << 20), np.empty(1 << 20, np.int64)
    _alive.extend((data, source, target))
    places = rng.integers(0, (1 << 23) - 8000, 20_000)
    ranges.copy_all(address_of(source) + places, np.full(len(places), 300), address_of(target) + places)
    rows = np.empty((20_000, 128), np.int64)
    row = np.empty(128, np.uint16)
    ranges.copy_rows(address_of(source) + places, row, address_of(row), np.arange(20_000), rows)
    table = np.array([address_of(source)])
    ranges.gather_pairs(
        table, np.array([1 << 20]), np.array([20_000]), places >> 3, address_of(target), address_of(target)
    )
    ranges.read_all(np.zeros(0, np.int64), *(np.zeros(0, np.int64) for _ in range(3)))


def _without_writing(btree: Any, file: int, columns: Any, order: Any) -> None:
    write = btree.os.pwrite
    btree.os.pwrite = lambda _, view, __: len(view)
    try:
        btree.write_trees(file, [btree.Tree(columns, (0, -1, 1), None, 2), btree.Tree(columns, (-1, -2), order, 3)], 3)
    finally:
        btree.os.pwrite = write


def run_order() -> None:
    from feedmill.kernels import bos_eos, pixels, rows
    from feedmill.kernels.order import binpack, blocks, deadlines, greedy, mersenne

    rng = np.random.default_rng(1)
    sizes = rng.integers(1, 2049, 200_000).astype(np.int32)
    binpack.best_fit_decreasing(sizes, 2048, np.array([0, 100_000, 200_000]))
    blocks.greedy_blocks(np.cumsum(rng.integers(0, 3000, 500_000)), 4096)
    weights = rng.random(12)
    choice, counts = greedy.greedy(weights / weights.sum(), 200_000)
    greedy.ranks(choice, counts)
    mersenne.randperm(1_000_000, 1)
    mersenne.shuffle(np.arange(1_000_000), 1)
    large, mersenne.LARGE = mersenne.LARGE, 0
    mersenne.randperm(1_000_000, 1)
    mersenne.LARGE = large
    each = deadlines.Rates(tuple(int(w) for w in rng.integers(1000, 2000, 12)), 40_000, 39_999, 20_000)
    length = 20_000
    before, after = (deadlines.counts_before(each, slot) for slot in (length, 2 * length))
    deadlines.deal(each, length, before, after)

    tokens = rng.integers(0, 50_000, 4_000_000).astype(np.uint16)
    width, n = 2048, 512
    first = rng.integers(0, len(tokens) - width - 1, n)
    inputs, targets = np.empty((2, n, width), np.int64)
    loss = (rng.random(len(tokens)) < 0.9).astype(np.uint8)
    rows.shift_rows(tokens, loss, first, np.arange(n), -100, inputs, targets)
    rows.copy_spans(tokens, first, np.full(n, width), np.arange(n) * width, inputs.reshape(-1))
    row_offsets, lengths = np.arange(0, 4 * n + 1, 4), np.full(4 * n, 500)
    rows.lay_out(row_offsets, lengths, inputs, 0)
    positions = np.empty((n, width), np.int32)
    laid = rows.lay_out_shifted(row_offsets, lengths, 0, -100, inputs, targets, positions)
    bounds = np.arange(0, len(tokens) + 1, 1000)
    spans = rng.integers(0, len(bounds) - 1, 4 * n), np.zeros(4 * n, np.int64), lengths
    rows.shift_spans(tokens, loss, bounds, spans, (laid.rows, laid.columns), -100, True, inputs, targets)
    ends = np.tile(np.arange(0, width, 500, np.int32), (n, 1))
    mask = rng.random((n, width)) < 0.9
    rows.targets_of(inputs, -100, loss=mask, begins=~mask, ends=ends, real=np.full(n, 2000))
    rows.count_up(np.repeat(np.arange(n), 3), np.tile([500, 1000, 1500], n), inputs)
    ids, sizes_of = tokens[:2_000_000].astype(np.uint32), np.full(2000, 1000)
    bos_eos.add_bos_eos(ids, sizes_of, np.ones(2000, np.bool_), bos=1, eos=2, always=False, dtype="<u2")
    pixels.unit_planes(
        rng.integers(0, 256, (8, 224 * 224 * 3)).astype(np.uint8), np.empty((8, 3 * 224 * 224), np.float32)
    )


ADDRESSES = ("files.ranges.", "files.tar_many.")
"""Kernels that read and write at addresses, whose arguments cannot be copied."""
_alive: list[Any] = []
"""What is at these addresses."""
RUNS = (run_text, run_hashing, run_jsonl, run_files, run_order)


def recorded() -> dict[str, tuple[Kernel, tuple[Any, ...], float]]:
    """Return the longest call of each kernel: its arguments before the call."""
    found: dict[str, tuple[Kernel, tuple[Any, ...], float]] = {}
    call = Kernel.__call__

    def record(kernel: Kernel, *args: Any) -> Any:
        name = f"{kernel.__module__.removeprefix('feedmill.kernels.')}.{kernel.__name__}"
        before = copied(name, args)
        begin = time.perf_counter()
        result = call(kernel, *args)
        took = time.perf_counter() - begin
        if name not in found or took > found[name][2]:
            found[name] = kernel, before, took
        return result

    Kernel.__call__ = record  # type: ignore[method-assign]
    try:
        for one in RUNS:
            one()
    finally:
        Kernel.__call__ = call  # type: ignore[method-assign]
    return found


def copied(name: str, args: tuple[Any, ...]) -> tuple[Any, ...]:
    if name.startswith(ADDRESSES):
        return args
    return tuple(arg.copy() if isinstance(arg, np.ndarray) and arg.flags.writeable else arg for arg in args)


def best(
    kernel: str, sides: dict[str, Callable[..., Any]], args: tuple[Any, ...], repeat: int
) -> tuple[dict[str, float], bool]:
    """Return the least processor time of a call of each side in seconds, and whether the results are equal."""
    times, results = dict.fromkeys(sides, np.inf), []
    for side in sides.values():  # the first call loads or compiles
        mine = copied(kernel, args)
        result = side(*mine)
        results.append((result, [arg.tobytes() for arg in mine if isinstance(arg, np.ndarray)]))
    mine = copied(kernel, args)
    begin = time.process_time_ns()
    side(*mine)
    calls = int(np.clip(200_000 / (time.process_time_ns() - begin), 1, 100))  # the clock itself takes part of 1 us
    for turn in range(repeat):  # whoever is second finds more in the caches
        for name, side in list(sides.items())[:: 1 - 2 * (turn % 2)]:
            each = [copied(kernel, args) for _ in range(calls)]
            begin = time.process_time_ns()
            for mine in each:
                side(*mine)
            times[name] = min(times[name], (time.process_time_ns() - begin) / calls / 1e9)
    return times, results[0] == results[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="kernels whose names begin so, with commas")
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    results = {}
    print(f"{'kernel':36} {'us':>9} {'numba':>9} {'ratio':>6}")
    for name, (kernel, args, _) in sorted(recorded().items()):
        if name.startswith(tuple(options.only.split(","))):
            times, equal = best(name, {"own": kernel, "numba": by_numba(kernel)}, args, options.repeat)
            ratio = times["numba"] / times["own"]
            results[name] = {**times, "equal": equal}
            print(
                f"{name:36} {times['own'] * 1e6:9.2f} {times['numba'] * 1e6:9.2f} {ratio:6.2f}"
                f"{'' if equal else '  DIFFERENT'}",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
