"""Recipes: what they mean, and errors that name every wrong line."""

import json
from pathlib import Path

import numpy as np
import pytest
import yaml

import feedmill
from feedmill.errors import ConfigError, NotFound
from feedmill.planning.plan import Plan
from feedmill.planning.recipes.read import KINDS
from feedmill.planning.recipes.recipe import Recipe
from helpers.number_dataset import Numbered

SIZES = {"docs.jsonl": 1000, "code": 300, "big": 10_000, "empty": 0}


class Opener:
    """Opens numbered datasets by the last part of their path and keeps what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict]] = []

    def __call__(self, path: str, **options: str) -> Numbered:
        self.asked.append((path, options))
        return Numbered(path, SIZES[path.rpartition("/")[2]])


def planned(text: str, **options) -> Plan:
    return Recipe.parse(text, **options).plan(Opener())


def refused(text: str) -> str:
    with pytest.raises(ConfigError) as error:
        planned(text)
    return str(error.value)


BLEND = """
seed: 7
samples: 1000
shuffle: block
blend:
  - path: docs.jsonl
    weight: 0.7
    split: train
    dataset_config: other.yaml
    subset: ["10%", 50%]
    shuffle: global
  - path: ../data/code
    name: programs
    weight: 0.3
    shuffle: {kind: block, block: 8, window: 2}
    max_repeats: 5
"""


@pytest.mark.parametrize(
    ("text", "length"),
    [
        ("{seed: 3, blend: [{path: code, weight: 0.3}], epochs: %s}", 1),
        ("{seed: 3, blend: [{path: code}], epochs: %s}", 2.5),
        ("{seed: 3, blend: [{blend: [{path: code}], epochs: %s, name: x, weight: 1}, {path: big, weight: 0}]}", 2),
        ("{seed: 3, concat: [{blend: [{path: code}], epochs: %s, name: x}], shuffle: none}", 3),
    ],
)
def test_a_blend_of_one_source_has_epochs(text: str, length: float) -> None:
    plan = planned((text % length).replace("path: code}", "path: code, max_repeats: 3}"))
    expected = int(300 * length)
    assert (plan.length or 10**9) >= expected
    found = plan.locate(np.arange(expected))
    counts = np.bincount(found.index)
    assert len(counts) == 300 and counts.min() == int(length) and counts.max() == -(-length // 1)
    assert np.array_equal(found.index[:300], planned("{seed: 3, blend: [{path: code}]}").locate(range(300)).index) or (
        "name: x" in text
    )


def test_epochs_of_an_endless_member_are_named() -> None:
    assert "endless" in refused("{blend: [{blend: [{path: code}, {path: big}]}], epochs: 1}")


def test_a_blend_is_what_it_says(tmp_path: Path) -> None:
    opener = Opener()
    plan = Recipe.parse(BLEND, base=tmp_path / "recipes").plan(opener)
    assert opener.asked == [
        (f"{tmp_path}/recipes/docs.jsonl", {"split": "train", "dataset_config": "other.yaml"}),
        (f"{tmp_path}/data/code", {}),
    ]
    assert plan.length == 1000 and plan.seed == 7 and plan.names == ["docs", "programs"]
    located = plan.locate(np.arange(1000))
    docs = located.index[located.source == 0]
    assert len(docs) == 700 and docs.min() == 100 and docs.max() == 499
    assert len(set(docs[:400].tolist())) == 400
    assert str(plan).splitlines()[2:] == [
        "   ├─ docs: 1,000 samples, subset [100, 500), shuffle global, repeated",
        "   └─ programs: 300 samples, shuffle block 8 x 2, repeated, at most 5 times in all",
    ]


def test_a_single_source_and_a_row(tmp_path: Path) -> None:
    plan = planned("{source: code, epochs: 2, shuffle: none}")
    assert plan.length == 600 and plan.locate([0, 299, 300]).index.tolist() == [0, 299, 0]
    assert planned("{source: code, samples: 450}").length == 450
    assert planned("source: {path: code, max_repeats: 3}").length == 900
    assert planned("source: code").length is None
    row = planned(
        "{concat: [code, docs.jsonl], shuffle: none, epochs: 1}".replace("code,", "{path: code},").replace(
            "docs.jsonl", "{path: docs.jsonl}"
        )
    )
    assert row.length == 1300 and row.locate([299, 300]).source.tolist() == [0, 1]
    mixed = planned("{concat: [{path: code}, {path: docs.jsonl, epochs: 2}], epochs: 1, shuffle: global}")
    assert mixed.length == 2300 and len(set(mixed.locate(np.arange(300)).source.tolist())) == 2
    own = planned("{concat: [{path: code, shuffle: global}, {path: docs.jsonl}], epochs: 1, shuffle: none}")
    located = own.locate(np.arange(1300))
    assert sorted(located.index[:300].tolist()) == list(range(300)) != located.index[:300].tolist()
    assert located.index[300:].tolist() == list(range(1000))


def test_epochs_in_a_blend_end_it() -> None:
    plan = planned("{shuffle: none, blend: [{path: code, epochs: 2, weight: 1}, {path: big, weight: 3}]}")
    drawn = np.bincount(plan.locate(np.arange(plan.length)).source)
    assert drawn[0] == 600 and abs(drawn[1] - 1800) <= 4
    bounded = "{samples: 99999, blend: [{path: code, epochs: 2}, {path: big}]}"
    assert "recipe:1: the blend cannot have 99,999 samples: a source of it ends after" in refused(bounded)


def test_the_same_data_set_twice_is_opened_once_and_ordered_twice() -> None:
    opener = Opener()
    plan = Recipe.parse("{shuffle: global, blend: [{path: code}, {path: code}]}").plan(opener)
    assert len(opener.asked) == 1 and plan.sources[0] is plan.sources[1] and plan.names == ["code", "code-2"]
    index = plan.locate(np.arange(600)).index
    assert (index[0::2] == index[1::2]).mean() < 0.05


def test_the_order_of_a_source_does_not_hang_on_its_neighbours() -> None:
    one = planned("{seed: 3, blend: [{path: code, name: a, weight: 1}, {path: big, weight: 1}]}")
    two = planned("{seed: 3, blend: [{path: docs.jsonl, weight: 1}, {path: code, name: a, weight: 2}]}")
    first = one.locate(np.arange(600))
    second = two.locate(np.arange(600))
    a, b = first.index[first.source == 0], second.index[second.source == 1]
    assert np.array_equal(a[:300], b[:300])


def test_recipes_nest(tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    (tmp_path / "inner/mix.yaml").write_text("{seed: 1, shuffle: none, blend: [{path: code}, {path: big}]}")
    (tmp_path / "inner/few.yaml").write_text("{source: docs.jsonl, samples: 10, shuffle: none}")
    outer = tmp_path / "outer.yaml"
    outer.write_text(
        "blend:\n  - {recipe: inner/mix.yaml, weight: 0.5}\n  - {recipe: inner/few.yaml, weight: 0.25, name: few}\n"
        "  - weight: 0.25\n    concat: [{path: code}, {path: code}]\n"
    )
    recipe = Recipe.load(outer)
    opener = Opener()
    plan = recipe.plan(opener)
    assert plan.names == ["mix/code", "mix/big", "few/docs", "concat/code", "concat/code-2"]
    assert {path for path, _ in opener.asked} == {
        f"{tmp_path}/{name}" for name in ("inner/code", "inner/big", "inner/docs.jsonl", "code")
    }
    located = plan.locate(np.arange(800))
    assert np.bincount(located.source)[:3].tolist() == [200, 200, 200]
    # A recipe of 10 samples that is drawn 200 times continues through its source instead of starting over.
    assert located.index[located.source == 2].tolist() == list(range(200))
    assert str(recipe).splitlines() == [
        "outer.yaml, shuffle block, blend",
        "├─ inner/mix.yaml: weight 0.5",
        "│  ├─ code",
        "│  └─ big",
        "├─ few (inner/few.yaml): weight 0.25",
        "│  └─ docs.jsonl",
        "└─ concat: weight 0.25",
        "   ├─ code",
        "   └─ code",
    ]
    before = recipe.fingerprint
    (tmp_path / "inner/mix.yaml").write_text("{seed: 2, shuffle: none, blend: [{path: code}, {path: big}]}")
    assert Recipe.load(outer).fingerprint != before


def test_a_seed_of_a_nested_recipe_matters(tmp_path: Path) -> None:
    orders = []
    for seed in (1, 2):
        (tmp_path / "inner.yaml").write_text(f"{{seed: {seed}, source: code, epochs: 1}}")
        plan = Recipe.parse("{blend: [{recipe: inner.yaml}]}", base=tmp_path).plan(Opener())
        orders.append((plan.locate(np.arange(300)).index.tolist(), plan))
    assert orders[0][0] != orders[1][0]
    assert "another key" in orders[1][1].explain_change(orders[0][1].fingerprints)[0]


@pytest.mark.parametrize(
    ("stages", "blend", "same", "other"),
    [
        ("", "blend: [{path: docs.jsonl, weight: 0.7}, {path: code, weight: 0.3}]", (30, 70), 75),
        (
            "stages: [{samples: 40, weights: {docs: 1, code: 2}}, {samples: 40, weights: {docs: 2, code: 1}}]\n",
            "blend: [{path: docs.jsonl}, {path: code}]",
            (),
            75,
        ),
    ],
)
def test_the_fingerprint_says_where_a_blend_ends_that_begins_anew(
    tmp_path: Path, stages: str, blend: str, same: tuple[int, ...], other: int
) -> None:
    def of(samples: int) -> Plan:
        (tmp_path / "inner.yaml").write_text(f"samples: {samples}\n{stages}{blend}")
        return Recipe.parse("{source: {recipe: inner.yaml}, epochs: 3}", base=tmp_path).plan(Opener())

    def order(plan: Plan) -> list[int]:
        return plan.locate(np.arange(90)).source.tolist()

    plan = of(80)
    for samples in same:  # whole periods: nothing tells where it began again
        assert of(samples).fingerprint == plan.fingerprint and order(of(samples)) == order(plan)
    assert order(of(other)) != order(plan) and of(other).fingerprint != plan.fingerprint


def test_recipes_that_contain_each_other_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("blend:\n  - path: code\n  - recipe: b.yaml\n")
    (tmp_path / "b.yaml").write_text("source:\n  recipe: ./a.yaml\n")
    with pytest.raises(ConfigError, match=r"b.yaml:2: the recipes contain each other: a.yaml -> b.yaml -> a.yaml"):
        Recipe.load(tmp_path / "a.yaml")
    (tmp_path / "self.yaml").write_text("source: {recipe: self.yaml}")
    with pytest.raises(ConfigError, match=r"self\.yaml -> self\.yaml"):
        Recipe.load(tmp_path / "self.yaml")


def test_a_recipe_may_stand_in_two_places(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("source: code")
    plan = Recipe.parse("{blend: [{recipe: a.yaml}, {recipe: a.yaml}]}", base=tmp_path).plan(Opener())
    assert plan.names == ["a/code", "a-2/code"]


def test_all_problems_are_named_at_once_with_their_lines(tmp_path: Path) -> None:
    file = tmp_path / "bad.yaml"
    file.write_text(
        "sed: 3\n"
        "shuffle: globl\n"
        "blend:\n"
        "  - path: a\n"
        "    wieght: 3\n"
        "  - path: b\n"
        "    weight: -1\n"
        "    subset: [5, 1, 2]\n"
        "samples: 0\n"
    )
    with pytest.raises(ConfigError) as error:
        Recipe.load(file)
    lines = str(error.value).splitlines()
    assert lines[0] == f"{file}: this recipe has 6 problems:"
    wanted = [
        "1: unknown key 'sed' (did you mean 'seed'?)",
        "2: shuffle.kind: input should be 'none', 'global', 'block' or 'shards', found 'globl'",
        "5: unknown key 'wieght' (did you mean 'weight'?)",
        "7: blend[1].weight: the weight '-1' is negative",
        "8: blend[1].subset: ",
        "9: samples: input should be greater than or equal to 1, found 0",
    ]
    for line, start in zip(lines[1:], wanted, strict=True):
        assert line.startswith(f"  {file}:{start}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "recipe must be a mapping of keys to values, this is empty"),
        ("- a", "this is list"),
        ("a: [1", "recipe:2: this is not valid YAML"),
        ("source: x\nsource: y", "recipe:2: the key 'source' occurs twice"),
        ("a: &x [*x]", "recipe:1: an alias contains itself"),
        ("source: !!python/object:os.system x", "recipe:1: this is not valid YAML"),
        ('source: a\nseed: !!int ""', "recipe:2: '' is not a valid value of the YAML type 'int'"),
        ("source: a\nseed: !!timestamp x", "recipe:2: 'x' is not a valid value of the YAML type 'timestamp'"),
        ("source: a\nseed: !!bool maybe", "recipe:2: 'maybe' is not a valid value of the YAML type 'bool'"),
        ("source: a\nseed: 2020-13-01", "recipe:2: '2020-13-01' is not a valid value of the YAML type 'timestamp'"),
        ("source: '\ud800'", "this is not valid YAML: unacceptable character #xd800"),
        ("seed: 1", "give exactly one of 'source', 'blend', 'blend_epochized', 'concat' or 'rollouts' (found: none)"),
        ("epochs: 2\nrollouts: {path: a, groups: 2}", "'rollouts' has only a 'seed' beside it: remove 'epochs'"),
        ("{source: a, concat: [{path: b}]}", "(found: source, concat)"),
        ("blend: []", "blend: list should have at least 1 item"),
        (
            "blend: [{weight: 1}]",
            "exactly one of 'path', 'recipe', 'blend', 'blend_epochized', 'concat', 'zip', 'join' or 'cells'",
        ),
        ("{source: a, epochs: 1, samples: 1}", "'samples' or 'epochs', not both"),
        ("{blend: [{path: a}, {path: b}], epochs: 1}", "a blend has no 'epochs'"),
        ("{blend: [{path: a, epochs: 2}], epochs: 1}", "a blend has no 'epochs'"),
        ("{blend: [{path: a}], epochs: 1, homogeneous: {samples: 8, by: n}}", "'epochs' cannot be combined"),
        ("{source: a, pack: {seq_len: 8, epochs: 1}}", "unknown key 'epochs': it belongs at the top of the recipe"),
        ("blend: [{path: a, seed: 1}]", "unknown key 'seed': it belongs at the top of the recipe"),
        ("{source: a, seq_len: 8, buffer: 9}", "unknown key 'buffer': it belongs in 'pack'"),
        ("source: {path: a, weight: 1}", "a single source has no 'weight'"),
        ("source: {path: a, epochs: 1}", "write 'epochs' at the top"),
        ("concat: [{path: a, weight: 1}]", "a concatenation has no weights"),
        ("blend: [{path: a, weight: 1}, {path: b}]", "1 of 2 sources have no 'weight'"),
        ("blend: [{path: a, weight: 0}]", "add up to zero"),
        ("blend: [{path: a, weight: .nan}]", "not a finite number"),
        ("blend: [{path: a, weight: true}]", "not a number"),
        ("blend: [{path: a, name: x}, {path: b, name: x}]", "duplicate name 'x'"),
        ("blend: [{path: a, name: x/y}]", "name"),
        ("blend: [{recipe: a, split: x}]", "'split' needs a dataset"),
        ("{source: a, samples: true}", "valid integer, found True"),
        ("{source: a, samples: 99999999999999999999}", "less than 9223372036854775808"),
        ("{source: a, shuffle: {kind: block, blok: 3}}", "did you mean 'block'?"),
        ("{source: {path: a, subset: [a, 2]}}", "a bound of a subset"),
        ("{source: {path: a, subset: ['101%', 2]}}", "a bound of a subset"),
        ("{source: a, zzz: 1}", "unknown key 'zzz'; known keys: seed, samples"),
        ("{source: a, shuffle: {kind: global, window: 4}}", "'block' and 'window' need 'kind: block'"),
        ("{source: a, decode: {imag: rgb8}}", "recipe:1: unknown key 'imag' (did you mean 'image'?)"),
        ("blend: [{path: a, decode: {imag: rgb8}}]", "unknown key 'imag' (did you mean 'image'?)"),
        ("blend: [a]", "recipe:1: blend[0]: expected a mapping, such as {path: my-data/}, found 'a'"),
        ("{source: a, pack: 5}", "recipe:1: pack: expected a mapping, found 5"),
        ("{1: 2}", "recipe"),
        # what only the datasets can tell
        ("source:\n  path: empty", "recipe:2: the dataset empty has no samples"),
        ("blend:\n - path: code\n   subset: [0, 301]", "recipe:3: the subset [0, 301) does not lie in its 300 samples"),
        ("blend:\n - path: code\n   subset: ['50%', '50%']", "recipe:3: the subset [150, 150) is empty"),
        ("concat:\n - path: code\n - blend: [{path: big}]", "recipe:3: a concatenation needs a finite source"),
        ("blend:\n - max_repeats: 2\n   blend: [{path: big}]", "counting epochs needs a finite source"),
        ("{source: big, epochs: 9000000000000000}", "exceed the maximum length of a plan"),
        (
            "source:\n  path: code\n  max_repeats: 2\nepochs: 3",
            "recipe:3 'code': the source would be repeated too often",
        ),
        (
            "samples: 1000\nblend:\n - path: code\n   weight: 2\n   max_repeats: 1\n - {path: big, weight: 1}",
            "recipe:5 'code': the source would be repeated too often: 1,000 samples of the plan draw 667 from it,"
            " but max_repeats 1 x 300 samples = 300. Ask for at most 'samples: 450', raise max_repeats to 3",
        ),
    ],
)
def test_bad_recipes_are_refused_with_the_line_and_the_fix(text: str, message: str) -> None:
    assert message in refused(text)


def test_aliases_that_explode_are_refused() -> None:
    bomb = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n"
    bomb += "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 9))
    assert "expand to more than" in refused(bomb)


def test_a_long_list_is_no_explosion() -> None:
    numbers = ", ".join(map(str, range(120_000)))
    recipe = Recipe.parse(f"source: code\nsamples: 300000\nskip:\n- {{source: code, indices: [{numbers}]}}\n")
    assert recipe.model.skip is not None and len(recipe.model.skip[0].indices or ()) == 120_000


def test_deep_nesting_is_an_error_not_a_crash() -> None:
    for opening in ("[", "{a: ", "- "):
        assert "nested more than 100 levels deep" in refused(opening * 300_000)


def test_a_missing_recipe_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match=r"none\.yaml"):
        Recipe.load(tmp_path / "none.yaml")


def test_data_is_not_read_as_a_recipe(tmp_path: Path) -> None:
    with open(tmp_path / "corpus.txt", "wb") as file:
        file.truncate(1 << 40)  # with holes: a terabyte that takes no room
    with pytest.raises(ConfigError, match=r"corpus.txt: this is not a recipe: the file has 1,099,511,627,776 bytes"):
        Recipe.load(tmp_path / "corpus.txt")


def test_plain_data_is_read_as_well() -> None:
    recipe = Recipe.parse({"source": {"path": "code", "subset": [100, "end"]}, "epochs": 1, "shuffle": "none"})
    assert recipe.plan(Opener()).locate([0]).index.tolist() == [100]
    with pytest.raises(ConfigError, match=r"recipe blend\[0\]\.pth: unknown key 'pth' .did you mean 'path'"):
        Recipe.parse({"blend": [{"pth": "x", "path": "y"}]})


def test_the_fingerprint_is_of_what_is_said() -> None:
    base = Recipe.parse("{source: code, seed: 1}").fingerprint
    assert Recipe.parse("# a comment\nseed: 1\nshuffle: block\nsource: {path: code}\n").fingerprint == base
    assert Recipe.parse("{source: code, seed: 2}").fingerprint != base


def test_the_fingerprint_takes_whatever_yaml_has() -> None:
    text = "source: {path: code, subflavors: {a: !!binary WORD, b: !!set {x, y}, c: 2020-01-01, d: {1: x, y: 2}}}"
    recipes = [Recipe.parse(text.replace("WORD", word)) for word in ("/w==", "/g==", "/w==")]
    assert recipes[0].fingerprint == recipes[2].fingerprint != recipes[1].fingerprint
    assert Recipe.parse({"source": {"path": "code", "subflavors": {"a": np.int64(3)}}}).fingerprint


def test_the_schema_is_json() -> None:
    schema = json.loads(json.dumps(Recipe.json_schema()))
    own = {"seed", "samples", "epochs", "global_batch", "shuffle", "stages", "unit", "order", "pack", "skip", "proxy"}
    own |= {
        "mixed_tokenizers",
        "decode",
        "deal",
        "balance",
        "batch",
        "homogeneous",
        "cache",
        "storage",
        "targets",
        "episodes",
        "lengths",
    }
    assert set(schema["properties"]) == own | {"source", "blend", "blend_epochized", "concat", "rollouts"}
    assert not schema["additionalProperties"]


@pytest.mark.parametrize(
    ("owner", "key", "short"),
    [
        ("", "source", {"type": "string"}),
        ("", "shuffle", {"type": "string", "enum": ["none", "global", "block", "shards"]}),
        ("", "decode", {"type": "string"}),
        ("Member", "windows", {"type": "integer"}),
        ("Member", "shuffle", {"type": "string", "enum": ["none", "global", "block", "shards"]}),
    ],
)
def test_the_schema_takes_a_word_in_place_of_a_mapping(owner: str, key: str, short: dict) -> None:
    schema = Recipe.json_schema()
    assert short in (schema["$defs"][owner] if owner else schema)["properties"][key]["anyOf"]


def test_the_schema_takes_what_the_examples_of_the_page_say() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    checked = jsonschema.Draft202012Validator(Recipe.json_schema())
    page = (Path(__file__).parents[3] / "docs" / "recipes.md").read_text()
    blocks = [yaml.safe_load(block.partition("```")[0]) for block in page.split("```yaml\n")[1:]]
    for recipe in [block for block in blocks if {"source", *KINDS} & set(block)]:
        assert not list(checked.iter_errors(recipe)), recipe
    assert list(checked.iter_errors({"source": "a", "shuffle": "blok"}))


def test_the_public_face_has_them() -> None:
    assert feedmill.Recipe is Recipe and feedmill.Plan is Plan


@pytest.mark.parametrize(
    "text",
    [
        "source: {{recipe: {}}}\n",
        "__module__: megatron.energon\n__class__: MetadatasetV2\nsplits: {{train: {{path: {}}}}}\n",
    ],
)
def test_a_chain_of_recipes_without_end_is_refused(tmp_path: Path, text: str) -> None:
    for number in range(300):
        (tmp_path / f"{number}.yaml").write_text(text.format(f"{number + 1}.yaml"))
    with pytest.raises(ConfigError, match="more than 64 levels of nested files"):
        Recipe.load(tmp_path / "0.yaml")
