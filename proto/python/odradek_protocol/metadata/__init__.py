"""Metadata records, and the image that results from replaying them.

`records` has the changes, `codec` their encoding, `image` their sum and what a step changed, `snapshot` the
encoding of a whole image, `features` the levels, `config_definitions` and `configs` the configs.
"""
