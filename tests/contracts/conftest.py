from helpers.engine_verbs import alone, inputs
from helpers.ray_cluster import cluster, connection, engine

__all__ = ["alone", "cluster", "connection", "engine", "inputs"]
