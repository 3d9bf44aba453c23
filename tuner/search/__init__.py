"""The sweep: which configs are measured next, what is compiled ahead, what is recorded."""
