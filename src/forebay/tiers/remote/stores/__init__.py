"""Stores: media that keep objects by name, one file each, behind one contract."""
