"""The code of a rank's process; it imports nothing from the notebook's side."""
