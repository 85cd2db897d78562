"""Write the reference: ``python docs/reference/write.py``.

`errors.md` has the kinds of errors, from the list in the code. The other pages list the public names by task; their
text is that of the docstrings. A class has the members that users call: the others serve the loader and the verbs.
"""

from __future__ import annotations

from pathlib import Path

from feedmill.errors import KINDS

HERE = Path(__file__).parent
PAGE = HERE.parent / "internals/errors.md"
HEAD = """\
# Kinds of errors

This page lists the kinds of errors. You need it to decide in a program what to do about an error: a kind is a short
word that stays the same, while messages may change. `error.kind` has it in Python, `--json` prints it as `kind`,
`feedmill check` gives each finding one, and so do the quarantine lists of loaders.

```python
import feedmill as fm

try:
    fm.open("no/such/folder")
except fm.FeedmillError as error:
    assert error.kind == "not-found"
```

Storage errors of the operating system have its names as kinds, such as `eacces` (permission denied) and `enospc` (the
disk is full). A sample whose transform raised an exception has the exception's class as its kind in quarantine lists,
such as `ValueError`. `feedmill.errors.KINDS` has these tables as data.
"""


def page() -> str:
    """Return what the page must contain."""
    tables = [
        f"\n## {subject}\n\n| kind | what it means, and what to do |\n|---|---|\n"
        + "".join(f"| `{kind}` | {sentence} |\n" for kind, sentence in sorted(kinds.items()))
        for subject, kinds in KINDS.items()
    ]
    return HEAD + "".join(tables)


MEMBERS = {
    "Dataset": "splits describe read read_batch locate find get get_many map filter select lengths lengths_by to_arrow"
    " to_polars to_pandas to_torch costs cost_fields shard_bounds verify fingerprint is_remote remarks",
    "Loader": "rank world_size position state_dict load_state_dict as_iterable_dataset again again_packs labels"
    " failures skipped close",
    "Plan": "over length read read_batch locate positions positions_of locate_sample position_of skip skipping"
    " as_dataset report drawn fingerprint explain_change",
    "Store": "entries files exists stat read read_ranges read_many write write_bytes delete local_copy is_local",
    "TaskEncoder": "cookers encode_sample preencode_sample postencode_sample select_samples_to_pack"
    " pack_selected_samples batch_group_criterion batch encode_batch",
    "tokens.PackedPlan": "length read read_batch spans placements documents_of positions_of skip report fingerprints",
    "tokens.TokenDataset": "lengths read_tokens loss_mask",
    "tokens.WindowDataset": "",
}
"""Class -> the members of its page, where others are for the code that calls it."""
INHERITED = {"Recipe"}
PAGES = {
    "open": (
        "Open and read data",
        "Open a dataset of any format, look at its samples, and take them as arrays or tables.",
        'ds = fm.open("coco")\n   ds[0], ds[:8], ds.find("000012")',
        "open Dataset Sample samples.Source samples.Decoder samples.AVDecoder",
    ),
    "samples": (
        "Sample types",
        "Dataclasses of typed samples: what ``fm.open`` of a prepared dataset gives.",
        'fm.open("coco")[0].caption',
        "samples.TypedSample samples.*",
    ),
    "loading": (
        "Mix and train",
        "A recipe becomes a plan, and a loader makes the batches of one rank of it.",
        'loader = fm.Loader("recipe.yaml", batch_size=8)',
        "Recipe Plan Loader Workers Checkpoint SkipSample TaskEncoder loading.*",
    ),
    "packing": (
        "Pack rows and mask tokens",
        "Rows of tokens and of whole samples for training: how they are packed, collated, and what the loss counts.",
        "packing = fm.tokens.Packing(seq_len=4096)",
        "tokens.Packing tokens.PackedPlan tokens.Targets tokens.LossMask tokens.with_targets tokens.collate_rows"
        " tokens.FillInMiddle tokens.TokenizeTransform samples.SampleRow",
    ),
    "data": (
        "Make and check datasets",
        "Functions that write. Each is also a verb of the command line, with the same options.",
        'fm.import_data("photos", "cards")',
        "import_data prepare check convert write writer Writer",
    ),
    "mixture": (
        "Find mixtures",
        "Make cells of documents, propose mixtures, fit the losses of their runs, and compare recipes.",
        'fm.mixture.propose("recipe.yaml", "swarm", runs=64)',
        "mixture.*",
    ),
    "edit": (
        "Change datasets",
        "Append, delete, repair and reshard: only the shards that change are written.",
        'fm.edit.append("coco", "more.jsonl")',
        "edit.*",
    ),
    "curation": (
        "Curate documents",
        "Functions that tag, compare, filter and count documents, and the pipeline of several of them.",
        'fm.tag(["web/documents"], taggers=["gopher_v2"])',
        "tag dedupe filter documents.* run",
    ),
    "tokens": (
        "Tokens",
        "Functions that write and read token files.",
        'fm.tokenize(["docs.jsonl"], "tokens/docs", tokenizer="tokenizer.json")',
        "tokenize tokens.*",
    ),
    "inspect": (
        "Look at data and runs",
        "Functions that report and change nothing.",
        'fm.trace("recipe.yaml", step=100, global_batch=256)',
        "show info preview plan trace bench cache serve report",
    ),
    "reports": (
        "Reports of verbs",
        "What the functions of verbs return. ``as_dict()`` gives plain data, ``show()`` a page for notebooks.",
        'report = fm.check("coco")',
        "reports.*",
    ),
    "base": (
        "Stores, engines and errors",
        "Where bytes live, where units of work run, and what is raised. Every error of Feedmill is a\n"
        "``FeedmillError``, and has one of the :doc:`kinds </internals/errors>`.",
        'store = fm.open_store("s3://bucket/folder")',
        "open_store Store RayEngine PartEngine FeedmillError *",
    ),
}
"""Page -> its title, its first sentences, an example, and its names; a star stands for the rest of a group."""


def names() -> dict[str, list[str]]:
    """Return the names of each page."""
    import feedmill as fm

    groups = {f"{group}.": [f"{group}.{name}" for name in getattr(fm, group).__all__] for group in fm._GROUPS}
    groups[""] = [name for name in fm.__all__ if name not in fm._GROUPS]
    named = {name for *_, listed in PAGES.values() for name in listed.split() if not name.endswith("*")}
    found = {}
    for page, (*_, listed) in PAGES.items():
        found[page] = [
            each
            for name in listed.split()
            for each in ([one for one in groups[name[:-1]] if one not in named] if name.endswith("*") else [name])
        ]
    return found


def references() -> dict[Path, str]:
    """Return what the pages of names must contain."""
    import inspect
    from pkgutil import resolve_name

    found = {}
    for page, listed in names().items():
        title, first, example, _ = PAGES[page]
        text = f"{title}\n{'=' * len(title)}\n\n{first}\n\n.. code-block:: python\n\n"
        text += f"   import feedmill as fm\n\n   {example}\n"
        for name in listed:
            isclass = inspect.isclass(resolve_name(f"feedmill:{name}"))
            text += f"\n.. {'autoclass' if isclass else 'autofunction'}:: feedmill.{name}\n"
            members = MEMBERS.get(name)
            if isclass and members != "":
                text += "   :members:" + (f" {', '.join(members.split())}" if members else "") + "\n"
            if name in INHERITED:
                text += "   :inherited-members:\n"
        found[HERE / f"{page}.rst"] = text
    return found


if __name__ == "__main__":
    PAGE.write_text(page())
    for path, text in references().items():
        path.write_text(text)
