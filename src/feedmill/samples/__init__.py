"""Meaning of sample bytes: sample types, field maps, decoding.

`open.py` opens a dataset of any format, `description.py` reads what its samples mean, and `view.py` returns them
decoded and typed: parts -> fields (`fieldmap.py`) -> values (`decode.py`) -> a dataclass of `types.py`.

- `open.py`: ``fm.open``. `views.py`: map, filter and select. `cells.py`: cells as datasets. `joined.py`: datasets
  joined by key. `tokenized.py`: texts tokenized when read. `frames.py`: all samples as a table.
- `description.py`: ``dataset.yaml``; `trusted.py`: the code that it may name; `crude.py`: samples without a type.
- `detection.py`: masks, and the fields of samples with boxes; `vision.py`: transforms that keep them right.
- `decode.py` and `encode.py`: parts by their suffix; `cbor.py`, `tenbin.py`, `images.py` and `imageheader.py`.
- Sound and video: `avdecoder.py`, `avmetadata.py`.
- Media metadata: `media.py` probes a file, `mediacollection.py` a dataset, `mediafacts.py` reads what was stored.
  `stores.py`: files that samples refer to.
- Token rows for training: `targets.py`, `fim.py`. Packed rows of whole samples: `rows.py`, and `counted.py`, samples
  with their tokens. `token_rules/`: tokens of media by their size.
- Samples of robots: `robotics/`, and VLA Foundry's: `vla/`.
- To look at: `preview.py` (the verb ``preview``; `options.py` has its options, and those of opening a dataset),
  `sheet.py`, `text.py`, `chart.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from feedmill.provided import lazily

HOMES = {
    "AVDecoder": "samples.avdecoder",
    "CaptioningSample": "samples.types",
    "Decoder": "samples.decode",
    "DetectionSample": "samples.types",
    "ImageClassificationSample": "samples.types",
    "ImageSample": "samples.types",
    "InterleavedSample": "samples.types",
    "Masks": "samples.detection",
    "MultiChoiceVQASample": "samples.types",
    "OCRSample": "samples.types",
    "SampleRow": "samples.rows",
    "SimilarityInterleavedSample": "samples.types",
    "Source": "formats.sample",
    "TextSample": "samples.types",
    "TypedSample": "samples.types",
    "VQAOCRSample": "samples.types",
    "VQASample": "samples.types",
    "VidQASample": "samples.types",
    "crop": "samples.vision",
    "flip": "samples.vision",
    "resize": "samples.vision",
}
__all__ = [
    "AVDecoder",
    "CaptioningSample",
    "Decoder",
    "DetectionSample",
    "ImageClassificationSample",
    "ImageSample",
    "InterleavedSample",
    "Masks",
    "MultiChoiceVQASample",
    "OCRSample",
    "SampleRow",
    "SimilarityInterleavedSample",
    "Source",
    "TextSample",
    "TypedSample",
    "VQAOCRSample",
    "VQASample",
    "VidQASample",
    "crop",
    "flip",
    "resize",
]

if TYPE_CHECKING:
    from feedmill.formats.sample import Source
    from feedmill.samples.avdecoder import AVDecoder
    from feedmill.samples.decode import Decoder
    from feedmill.samples.detection import Masks
    from feedmill.samples.rows import SampleRow
    from feedmill.samples.types import (
        CaptioningSample,
        DetectionSample,
        ImageClassificationSample,
        ImageSample,
        InterleavedSample,
        MultiChoiceVQASample,
        OCRSample,
        SimilarityInterleavedSample,
        TextSample,
        TypedSample,
        VidQASample,
        VQAOCRSample,
        VQASample,
    )
    from feedmill.samples.vision import crop, flip, resize
else:
    __getattr__, __dir__ = lazily("samples", HOMES)
