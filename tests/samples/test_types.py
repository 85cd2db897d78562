from __future__ import annotations

import copy
import pickle
import subprocess
import sys

import pytest

from feedmill.errors import ConfigError
from feedmill.formats.sample import Source
from feedmill.samples.types import (
    SAMPLE_TYPES,
    CaptioningSample,
    ImageSample,
    OCRSample,
    TextSample,
    fields_of,
    sample_type,
)

SOURCE = Source("ds", "0.tar", 0, 1024, 3, "k", ("k.txt",))
BASE = {"__key__": "k", "__restore_key__": ("Webdataset", 3), "__sources__": (SOURCE,), "__subflavors__": {"a": 1}}


@pytest.mark.parametrize(
    ("name", "obligatory", "optional"),
    [
        ("CaptioningSample", "image caption", ""),
        ("ImageSample", "image", ""),
        ("ImageClassificationSample", "image", "label label_name"),
        ("InterleavedSample", "sequence", ""),
        ("MultiChoiceVQASample", "image context", "choices correct_choice_idx"),
        (
            "OCRSample",
            "image text",
            "block_boxes block_classes block_text lines_boxes lines_text words_boxes words_text chars_boxes chars_text",
        ),
        (
            "SimilarityInterleavedSample",
            "images texts",
            "audio video similarity_matrix matched_text_indices",
        ),
        ("TextSample", "text", ""),
        ("VidQASample", "video context", "answers answer_weights"),
        ("VQASample", "image context", "answers answer_weights"),
        ("VQAOCRSample", "image context text", "answers answer_weights words_boxes words_text"),
    ],
)
def test_fields_are_those_of_the_specification(name: str, obligatory: str, optional: str) -> None:
    assert fields_of(SAMPLE_TYPES[name]) == (obligatory.split(), optional.split())
    assert sample_type(name) is sample_type(name.removesuffix("Sample") + "Webdataset") is SAMPLE_TYPES[name]


def test_unknown_type_names_the_nearest_and_all() -> None:
    with pytest.raises(ConfigError, match=r"'CaptionSample' \(did you mean 'CaptioningSample'\?\)") as caught:
        sample_type("CaptionSample")
    assert all(name in str(caught.value) for name in SAMPLE_TYPES)


def test_samples_are_keyword_only_slotted_and_travel() -> None:
    with pytest.raises(TypeError):
        TextSample("k", (), None, None, "hello")
    sample = TextSample(**BASE, text="hello")
    assert not hasattr(sample, "__dict__")
    assert pickle.loads(pickle.dumps(sample)) == copy.deepcopy(sample) == sample
    assert OCRSample(**BASE, image=None, text="x").words_text is None


def test_derive_takes_the_base_fields_only_and_extend_takes_all() -> None:
    caption = CaptioningSample(**BASE, image=1, caption="c")
    derived = TextSample.derive_from(caption, text="t", __key__="new")
    assert derived == TextSample(**{**BASE, "__key__": "new"}, text="t")
    assert CaptioningSample.extend(ImageSample(**BASE, image=1), caption="c") == caption


def test_the_room_imports_no_heavy_package() -> None:
    code = (
        "import sys, feedmill.samples.view, feedmill.samples.decode, feedmill.samples.media\n"
        "heavy = {'torch', 'PIL', 'av', 'soundfile', 'simplejpeg', 'pydantic'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (result.returncode, result.stderr) == (0, "")
