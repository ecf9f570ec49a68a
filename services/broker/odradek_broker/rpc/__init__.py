"""The gRPC listeners of a broker, their authorization, and the servicers behind them."""
