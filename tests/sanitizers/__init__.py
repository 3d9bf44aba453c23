"""Sanitizer builds of the native module, and the CPU tests under them (`make test-sanitizers`)."""
