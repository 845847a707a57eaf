"""What hardware to buy: pure arithmetic on model shapes and measured results, no I/O.

Every number that is assumed rather than given is a field with a default, so that a caller can see
and change it. For invalid input, a SettingsError names the field.
"""
