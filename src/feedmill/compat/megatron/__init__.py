"""Megatron-LM's face: its data tools, and the fields of its samples; see docs/migration/megatron.md."""
