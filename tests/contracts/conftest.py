from helpers.engine_verbs import alone, inputs

__all__ = ["alone", "inputs"]
