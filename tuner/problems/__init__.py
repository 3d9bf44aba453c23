"""What is measured: problems as plain fields, presets and shape files, group sizes."""
