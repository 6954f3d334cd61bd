"""A generic engine: typed config, a graph of stages, one context, events and a report. It knows no stage by name."""
