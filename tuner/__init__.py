"""The tuner: sweep, record, learn, export and inspect kernel configurations."""
