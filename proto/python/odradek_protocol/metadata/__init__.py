"""The cluster's metadata: records that describe changes, and the image that results from replaying the records.

`records` defines the records and `codec` encodes them. `image` replays records and compares images. `snapshot` encodes
a whole image. `features` defines the feature levels. `config_definitions` defines the configs, and `configs` looks up
their values.
"""
