"""Consumer instances of REST v2: created by one gateway, served by any, kept when a gateway dies.

instance            one instance: its options, its SDK consumer, its format
instance_registry   which gateway serves which instance: a compacted topic that all gateways read
instances           the instances served here, requests passed on, and instances taken over
"""
