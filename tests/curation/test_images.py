"""Vectors of images: pixels are those of transformers, vectors those of the model, for any format and any workers."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import feedmill as fm
from feedmill.cli.app import app
from feedmill.curation import embed as embedding
from feedmill.curation import image_files
from feedmill.curation.dedupe.job import dedupe
from feedmill.curation.embed import embed
from feedmill.curation.models import images
from feedmill.curation.models.files import Settings, find_model, name_of, parse
from feedmill.curation.models.networks import Batched
from feedmill.curation.models.tagger import load
from feedmill.errors import ConfigError, DataError, FeedmillError, NotFound
from feedmill.planning.recipes.skip import data_of
from helpers.document_datasets import read_json
from helpers.durations import needs
from helpers.vision_models import picture

needs("onnxruntime")
Image = pytest.importorskip("PIL.Image")
GOLDEN = Path(__file__).parents[1] / "golden/models"
MODEL = GOLDEN / "vision"
EXPECTED = json.loads((GOLDEN / "expected.json").read_text())["vision"]
COUNT = 40


def opened(path: Path = MODEL, settings: Settings | None = None) -> Any:
    return load(find_model(str(path)), settings or Settings(), vectors=True)


def pixels_of(seed: int, height: int, width: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)


def write_tar(path: Path, samples: dict[str, dict[str, bytes]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for key, parts in samples.items():
            for name, data in parts.items():
                entry = tarfile.TarInfo(f"{key}.{name}")
                entry.size = len(data)
                tar.addfile(entry, io.BytesIO(data))


def photo(number: int) -> bytes:
    """A JPEG, in all orientations; some are copies of one before."""
    number -= 7 * (number % 9 == 8)
    made: bytes = picture(30 + number % 5, 40 + number % 3, seed=number, orientation=1 + number % 8)
    return made


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for shard in range(2):
        numbers = range(shard * COUNT // 2, (shard + 1) * COUNT // 2)
        write_tar(tmp_path / f"photos/{shard}.tar", {f"p{k:02d}": {"jpg": photo(k), "txt": b"x"} for k in numbers})
    return tmp_path / "photos"


def run(*data: Path, **options: Any) -> Any:
    return embed([str(path) for path in data], **{"model": str(MODEL), "progress": False, **options})


def wanted() -> np.ndarray:
    """Vectors of the photos, one by one, from Pillow's upright pixels."""
    model = opened()
    upright = [Image.open(io.BytesIO(photo(k))) for k in range(COUNT)]
    from PIL import ImageOps

    return np.concatenate([model.vectors([model.prepare(np.asarray(ImageOps.exif_transpose(one)))]) for one in upright])


def test_vectors_equal_those_of_onnxruntime() -> None:
    model = opened()
    given = [model.prepare(pixels_of(seed, *shape)) for seed, shape in enumerate(EXPECTED["shapes"])]
    found = model.vectors([given[0], None, *given[1:]])
    assert np.abs(found[[0, 2, 3, 4]] - np.array(EXPECTED["vectors"])).max() < 1e-5 and not found[1].any()
    assert np.array_equal(found[[0, 2]], model.vectors(given[:2])) and found.dtype == np.float32
    assert model.vectors([None]).shape == (1, 8) and model.dimension == 8
    assert name_of(f"{MODEL}/onnx/vision_model.onnx") == name_of(str(MODEL)) == "vision"


def test_pixels_and_vectors_equal_those_of_transformers(tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    clip, siglip = transformers.CLIPImageProcessorPil, transformers.SiglipImageProcessorPil
    processors = [
        *(clip(), siglip(), transformers.ViTImageProcessorPil(), transformers.DeiTImageProcessorPil()),
        *(transformers.BitImageProcessorPil(size={"shortest_edge": 64}, crop_size=50), clip(do_resize=False)),
        *(siglip(resample=0, size={"height": 9, "width": 31}, do_normalize=False), siglip(do_rescale=False)),
    ]
    shapes = [(40, 50), (50, 40), (224, 224), (1, 90), (333, 101)]
    for number, processor in enumerate(processors):
        folder = tmp_path / f"{number}"
        shutil.copytree(MODEL, folder)
        processor.save_pretrained(str(folder))
        prepare = images.Preparation(find_model(str(folder)))
        for seed, shape in enumerate(shapes):
            own = processor(Image.fromarray(pixels_of(seed, *shape)), return_tensors="np")["pixel_values"][0]
            made = prepare(pixels_of(seed, *shape))
            assert np.array_equal(made, own) and made.dtype == own.dtype, (processor, shape)
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    small |= {"image_size": 32, "patch_size": 16}
    torch.manual_seed(0)
    own_models = {
        "clip": transformers.CLIPVisionModelWithProjection(transformers.CLIPVisionConfig(**small, projection_dim=4)),
        "dino": transformers.Dinov2Model(transformers.Dinov2Config(**small)),
        "vit": transformers.ViTModel(transformers.ViTConfig(**small), add_pooling_layer=False),
    }
    given = [pixels_of(seed, *shape) for seed, shape in enumerate(shapes)]
    for name, own_model in own_models.items():
        own_model.eval().save_pretrained(tmp_path / name)
        shutil.copy(MODEL / "preprocessor_config.json", tmp_path / name)
        model = opened(tmp_path / name, Settings(device="cpu"))
        prepared = [model.prepare(one) for one in given]
        with torch.inference_mode():
            out = own_model(torch.from_numpy(np.stack(prepared)))
        vectors = {"clip": "image_embeds", "dino": "pooler_output"}
        expected = getattr(out, vectors[name]) if name in vectors else out.last_hidden_state[:, 0]
        assert model.vectors(prepared) == pytest.approx(expected.numpy(), abs=1e-5)


@pytest.mark.parametrize("form", ["tars", "prepared", "parquet", "file"])
def test_any_format_has_the_same_vectors(photos: Path, form: str) -> None:
    data, of = photos, photos
    if form == "prepared":
        fm.convert(str(photos), str(data := photos.parent / "prepared"), to="webdataset", progress=False)
    elif form == "parquet":
        pytest.importorskip("pyarrow")
        fm.convert(str(photos), str(data := photos.parent / "table"), to="parquet", progress=False)
    elif form == "file":
        of, data = photos / "0.tar", photos / "0.tar"
    report = run(data)
    root = data.parent / f"embeddings/vision/{data.name}"
    files = sorted(root.rglob("*.npy")) if form != "file" else [data.parent / "embeddings/vision/0.tar.npy"]
    found = np.concatenate([np.load(path) for path in files])
    whole = wanted()[: COUNT if of == photos else COUNT // 2]
    assert np.array_equal(found, whole) and (report.rows, report.dimension) == (len(whole), 8)
    keys = [key for path in files for key in read_json(path.with_suffix(".keys.jsonl"))]
    assert keys == [sample.key for sample in fm.open(str(data))]
    assert run(data).reused == report.files and report.model == {"images": len(whole)}
    assert not (data / "embeddings").exists(), "nothing is written into the dataset"


def test_bytes_do_not_depend_on_workers_or_on_the_split_of_a_file(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(photos, workers=1)
    monkeypatch.setattr("feedmill.jobs.run.LARGE", 1)
    monkeypatch.setattr(images, "BLOCK_BYTES", 12 * 32 * 32 * 3)
    run(photos, workers=2, output=f"{photos.parent}/split")
    for path in sorted((photos.parent / "embeddings/vision/photos").iterdir()):
        assert path.read_bytes() == (photos.parent / "split/photos" / path.name).read_bytes()


def test_a_killed_run_is_finished_and_other_data_or_settings_are_embedded_again(
    photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = embedding.embed_file, list[str]()

    def killed(task: Any, workers: int = 1) -> Any:
        calls.append(task.path)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return real(task, workers)

    monkeypatch.setattr(embedding, "embed_file", killed)
    with pytest.raises(KeyboardInterrupt):
        run(photos, workers=1)
    monkeypatch.setattr(embedding, "embed_file", real)
    assert run(photos).reused == 1 and run(photos).reused == 2
    write_tar(photos / "1.tar", {"a": {"jpg": photo(3), "txt": b"x"}})
    assert (run(photos).reused, run(photos).reused, run(photos, image="jpg", overwrite=True).reused) == (1, 2, 0)
    (photos.parent / "embeddings/vision/photos/0.tar.keys.jsonl").unlink()
    assert run(photos).reused == 1
    assert run(photos, dry_run=True).dry_run.outputs == []
    assert run(photos, dry_run=True, overwrite=True).dry_run.counts == {"images": COUNT // 2 + 1}
    pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    run(photos, to="parquet")
    table = parquet.read_table(photos.parent / "embeddings/vision/photos/1.tar.parquet")
    assert table["id"].to_pylist() == ['"a"']
    assert not (photos.parent / "embeddings/vision/photos/1.tar.parquet.keys.jsonl").exists()


def test_broken_images_stop_the_run_or_are_counted_named_and_zero(tmp_path: Path) -> None:
    samples = {f"p{k}": {"jpg": photo(k), "txt": b"x"} for k in range(5)}
    samples["p2"]["jpg"] = photo(2)[:60]
    del samples["p3"]["jpg"]
    write_tar(tmp_path / "photos.tar", samples)
    with pytest.raises(DataError, match="--on-error skip") as caught:
        run(tmp_path / "photos.tar")
    assert "p2" in str(caught.value) and not list(tmp_path.glob("embeddings/**/*.npy"))
    for reused in (0, 1):
        report = run(tmp_path / "photos.tar", on_error="skip")
        assert report.left_out.names == {"image does not decode": ["p2"], "no image": ["p3"]}
        assert (report.reused, report.rows) == (reused, 5)
    assert np.load(tmp_path / "embeddings/vision/photos.tar.npy").any(axis=1).tolist() == [
        True,
        True,
        False,
        False,
        True,
    ]
    with pytest.raises(DataError):
        run(tmp_path / "photos.tar")
    words = ["documents", "embed", f"{tmp_path}/photos.tar", "--model", str(MODEL), "--on-error", "skip"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0 and "left out: 1 x no image (p3)\n" in done.stderr


def test_what_cannot_be_embedded(photos: Path, tmp_path: Path) -> None:
    write_tar(tmp_path / "two.tar", {"a": {"jpg": photo(1), "png": photo(2), "txt": b"x"}})
    write_tar(tmp_path / "none.tar", {"a": {"txt": b"x"}})
    static = str(GOLDEN / "static")
    for path, options, match in (
        ("two.tar", {}, "several images: jpg, png"),
        ("none.tar", {}, "no part that is an image"),
        ("none.tar", {"image": "txt"}, "not an image"),
        ("two.tar", {"image": "gif"}, "no part 'gif'"),
        ("two.tar", {"id": "x"}, "samples have keys"),
        ("two.tar", {"model": static, "image": "jpg"}, "the model reads texts"),
        ("two.tar", {"model": static, "on_error": "skip"}, "the model reads texts"),
        ("two.tar", {"model": f"{MODEL},tokens=3"}, "settings of models of texts"),
    ):
        with pytest.raises(FeedmillError, match=match):
            run(tmp_path / path, **options)
    assert run(tmp_path / "two.tar", image="jpg").rows == 1
    with pytest.raises(ConfigError, match="reads images, not texts"):
        load(find_model(str(MODEL)), Settings(), vectors=False)
    facts = json.loads((MODEL / "preprocessor_config.json").read_text())
    shutil.copytree(MODEL, tmp_path / "odd")
    for change, match in (
        ({"image_processor_type": "ConvNextImageProcessor"}, "ConvNextImageProcessor is unknown"),
        ({"do_center_crop": False}, "images would have any shape"),
        ({"size": {"longest_edge": 3}}, "longest_edge is unknown"),
        ({"crop_size": 31}, "its processor makes 3 x 31 x 31"),
        ({"resample": "cubic"}, "not a whole number"),
    ):
        (tmp_path / "odd/preprocessor_config.json").write_text(json.dumps(facts | change))
        with pytest.raises(ConfigError, match=match):
            opened(tmp_path / "odd")
    with pytest.raises(NotFound):
        run(tmp_path / "nowhere")
    assert image_files.has_images(str(photos), "documents") and not image_files.has_images("web/documents", "documents")


def test_a_batch_of_images_too_large_for_a_gpu_is_halved() -> None:
    class Runner(Batched):
        path = "m"

        def __init__(self) -> None:
            self.runner, self.cap, self.shapes = type("On", (), {"on_gpu": True}), 64, list[int]()

        def run(self, own: np.ndarray) -> np.ndarray:
            if len(own) > 10:
                raise RuntimeError("CUDA out of memory")
            self.shapes.append(len(own))
            return own[:, None].astype(np.float32)

    made = Runner()
    found = made.outputs(np.ones(50, np.int64), made.run)
    assert found is not None and found[:, 0].tolist() == list(range(50)) and sum(made.shapes) == 50 and made.cap == 6


@pytest.mark.parametrize("whole", [False, True])
def test_images_whose_vectors_depend_on_the_batch_go_one_at_a_time(
    whole: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a GPU, where images are in batches: a scale of the whole batch is that of a quantized network."""

    class Runner:
        on_gpu = True

        def __init__(self, *_: Any) -> None: ...

        def run(self, batch: np.ndarray) -> np.ndarray:
            scale = np.abs(batch).max() if whole else np.abs(batch).max(axis=(1, 2, 3), keepdims=True)
            return np.round(batch / scale * 127).mean(axis=(2, 3)) * 100

    monkeypatch.setattr(images, "_Onnx", Runner)
    assert images.ImageModel(find_model(str(MODEL)), Settings()).cap == (1 if whole else images.GPU_IMAGES)


def test_near_duplicates_of_images_are_removed_by_a_skip_list(photos: Path) -> None:
    run(photos)

    def near(**more: Any) -> Any:
        return dedupe([str(photos)], **{**options, **more})

    options: dict[str, Any] = {
        "near": True,
        "by": "embeddings",
        "embeddings": "vision",
        "threshold": 0.9999,
        "progress": False,
    }
    dry = near(dry_run=True)
    report = near()
    copies = [k for k in range(COUNT) if k % 9 == 8]
    (listed,) = report.skip_lists
    lines = read_json(Path(listed))
    data = data_of(fm.open(str(photos), raw=True))
    assert lines == [{"source": "photos", "index": k, "key": f"p{k:02d}", "data": data} for k in copies]
    assert (report.documents, report.duplicates, report.files) == (COUNT, len(copies), 2)
    assert listed in [one.path for one in dry.dry_run.outputs]
    rows = [row for path in sorted(photos.parent.glob("attributes/dup_meaning/photos/*")) for row in read_json(path)]
    assert [row["duplicate_of"] for row in rows if "duplicate_of" in row] == [f"p{k - 7:02d}" for k in copies]
    before = Path(listed).read_bytes()
    assert near().skipped
    Path(listed).unlink()
    near()
    assert Path(listed).read_bytes() == before
    recipe = photos.parent / "recipe.yaml"
    recipe.write_text(f"seed: 1\nsamples: {COUNT}\nskip:\n  - quarantine: {listed}\nblend:\n  - path: photos\n")
    assert len(fm.Recipe.load(str(recipe)).plan()) == COUNT - len(copies)
    fm.convert(str(photos), str(photos.parent / "kept"), to="webdataset", progress=False)
    done = CliRunner().invoke(app, ["edit", "delete", f"{photos.parent}/kept", "--keys-from", listed, "--yes"])
    assert done.exit_code == 0 and len(fm.open(f"{photos.parent}/kept")) == COUNT - len(copies)
    with pytest.raises(ConfigError, match="images have no length"):
        near(keep="longest")
    write_tar(photos / "1.tar", {"a": {"jpg": photo(3), "txt": b"x"}})
    with pytest.raises(ConfigError, match="the images have changed"):
        near()
    assert parse(str(MODEL)).path == str(MODEL)


def test_a_skip_list_of_rows_counts_in_the_data_that_it_names(tmp_path: Path) -> None:
    """Keys of rows are numbers: before, the list of all rows left out others of the split that a recipe takes."""
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    for name, numbers in (("test", range(10)), ("train", range(10, COUNT))):
        (tmp_path / "rows").mkdir(exist_ok=True)
        pq.write_table(pa.table({"jpg": [photo(k) for k in numbers]}), tmp_path / f"rows/{name}-0.parquet")

    def kept(split: str | None) -> int:
        run(tmp_path / "rows", overwrite=True, **({} if split is None else {"split": split}))
        near = dedupe(
            [str(tmp_path / "rows")], near=True, by="embeddings", embeddings="vision", threshold=0.99, progress=False
        )
        rest = {"epochs": 1, "skip": [{"quarantine": near.skip_lists[0]}]}
        source = {"path": str(tmp_path / "rows"), "name": "rows", "split": split or "train"}
        return len(fm.Recipe.parse({"source": source, **rest}).plan())

    assert kept("train") < 30
    assert kept("*") < COUNT
    with pytest.raises(ConfigError, match="may be another one: the dataset has changed since"):
        kept(None)
