"""Metadata records, and the image that results from replaying them.

`records` has the changes and `codec` their encoding; `image` has the result of replaying them and the differences
between images; `snapshot` has the encoding of a whole image, `features` the feature levels, and `config_definitions`
and `configs` the configs.
"""
