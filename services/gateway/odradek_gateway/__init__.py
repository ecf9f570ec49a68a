"""The REST gateway, which serves Confluent's REST APIs v2 and v3 and uses the SDK to reach the cluster.

Modules import downward only, in this order (import-linter checks it):

    process                        one gateway process, from start to stop
    app  http_server               the ASGI application with its routes; uvicorn with limits for each connection
    monitoring  openapi            health and metrics; openapi.json and the page that shows it
    rest                           routes of v2 and v3, and the code that v2 and v3 share
    auth                           authentication of callers, and requests to brokers on behalf of callers
    cluster_access                 the SDK client and producer through which the gateway reaches the cluster
    errors  settings  transactional_producers
"""
