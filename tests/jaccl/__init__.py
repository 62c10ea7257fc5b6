"""JACCL on Linux: MLX's own loops over pretended RDMA (see `lab`)."""
