"""Metadata records, and the image that replaying them gives.

`records` says what may change, `codec` how it is written, `image` what it adds up to, `delta` what
a step changed, `snapshot` how an image travels whole, `configs` which configs there are.
"""
