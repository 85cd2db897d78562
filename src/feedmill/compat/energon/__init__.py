"""Megatron Energon's faces: its command line (`cli`)."""
