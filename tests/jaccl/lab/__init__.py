"""MLX's JACCL on Linux: its loops, which the wheel ships as headers, over verbs in shared memory."""
