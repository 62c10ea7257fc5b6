"""The only code that runs inside a rank; it imports nothing of the notebook's side."""
