"""Stub until its module lands."""
