"""Import files as they lie on a disk: texts and tables become documents, media and robot
episodes become prepared shards.

- `import_data`: the verb. `report`: its result, and the files that it leaves out.
- `scanning`, `kinds`: the files of the sources, and what they are by their names.
- `recognition`: whether files are documents or media, and which layout of media.
- `layouts`, `metadata`: samples of media with captions beside them, in class folders or with a metadata file.
- `episodes`: samples of the episodes of LeRobot datasets.
- `samples`: the job that reads and checks media and writes shards.
- `rows`, `encodings`: documents of one file, with their texts and ids.
- `documents`: the job that writes documents.
"""
