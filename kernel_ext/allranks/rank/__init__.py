"""The only code that runs inside a rank; it imports nothing from the notebook's side."""
