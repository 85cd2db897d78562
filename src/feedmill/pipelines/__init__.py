"""Pipelines: several verbs as steps, each skipped if nothing that it depends on has changed.

A file of steps is read and checked, the files of each step are hashed, and a step whose inputs, options or outputs
differ from its last run runs again, as its verb does.

- `pipeline.py`: reads and checks the description of a pipeline and the options of its steps.
- `files.py`: the files of inputs and outputs, and their hashes.
- `reads.py`: what a step reads beside its inputs: tokenizers, models, benchmarks, attributes.
- `history.py`: what the last run of each step read and wrote, in the manifest beside the pipeline.
- `ahead.py`: steps that run file by file while earlier steps still write their inputs.
- `options.py`: the options of the verb ``run``.
- `run.py`: decides which steps must run, runs them on the engine in use, records each, and knows which files at the
  outputs are its own: only these may it replace or delete.
- `submit.py`: submits the steps as job arrays of Slurm, or as a job of KubeRay; their state; cancels them.
"""
