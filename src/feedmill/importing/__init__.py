"""Import files as they lie on a disk: texts and tables become documents, media and robot
episodes become prepared shards.

- `import_data.py`: the verb; `options.py`: its options. `report.py`: its result, and the files that it leaves out.
- `scanning.py`, `kinds.py`: the files of the sources, and what they are by their names.
- `recognition.py`: whether files are documents, media or episodes, and which layout of media.
- `layouts.py`, `metadata.py`: samples of media with captions beside them, in class folders or with a metadata file.
- `annotations/`: boxes, masks and keypoints of COCO, YOLO and Pascal VOC.
- `episodes.py`: samples of the episodes of LeRobot datasets.
- `samples.py`: the job that reads and checks media and writes shards.
- `rows.py`, `encodings.py`: documents of one file, with their texts and ids.
- `documents.py`: the job that writes documents.
"""
