"""Grafana's dashboards: tables of panels, the builder of the JSON files, and a check of their queries.

``panels/*.toml`` say what each dashboard shows; ``python -m grafana.build`` writes ``dashboards/*.json`` from them, and
``python -m grafana.check`` asks a Prometheus every query. Nothing of this is in the wheel, and nothing here draws.
"""
