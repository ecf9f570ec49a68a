"""Consumer instances of REST v2: made by one gateway, served by any, kept over a gateway's death.

instance            one instance: its options, its SDK consumer, its format
instance_registry   who serves which instance: a compacted topic that all gateways read
supervised          tasks whose failure is told
instances           those that this gateway serves; finds, passes on or takes over the others
"""
