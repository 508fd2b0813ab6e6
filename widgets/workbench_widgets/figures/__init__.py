"""Plotly figures of notebooks and studies."""
