"""Mutation tests: planted defects, and the tests that must notice them (`make test-mutants`)."""
