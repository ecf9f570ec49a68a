"""The REST gateway, which serves Confluent's REST APIs v2 and v3 and uses the SDK to reach the cluster.

Modules import downward only, in this order (import-linter checks it):

    process                        the process
    app  http_server               the application: routes and limits; uvicorn with our limits
    monitoring  openapi            health and metrics; openapi.json and its page
    rest                           routes of v2 and v3, and what both share
    auth                           authentication of callers, and requests to brokers on their behalf
    cluster_access                 one client, one producer
    errors  settings  transactional_producers
"""
