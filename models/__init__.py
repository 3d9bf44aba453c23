"""Exported selectors, one artefact and one model card per GPU model (SKU)."""
