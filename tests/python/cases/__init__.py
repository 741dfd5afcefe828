"""Runs cases that are written as data: see tests/vectors/cases/FORMAT.md."""
