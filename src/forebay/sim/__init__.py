"""Traces and simulation: one policy code, judged by what real users asked for."""
