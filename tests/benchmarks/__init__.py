"""Benchmarks; ``make bench`` runs them. They measure and print, and assert nothing about time."""
