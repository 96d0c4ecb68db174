"""Grafana's dashboards as code, a check that runs their queries, and pictures drawn from the queries' answers.

The dashboards are built with the typed ``grafana-foundation-sdk``, a tool of development; what reads the written files, runs
their queries and draws them needs neither the SDK nor Grafana.
"""
