"""From a trained selector to what users run: gates, artefact, model card, and what `select` shows."""
