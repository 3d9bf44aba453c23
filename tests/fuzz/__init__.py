"""Coverage-guided fuzzing of what reads foreign bytes (`make fuzz`)."""
