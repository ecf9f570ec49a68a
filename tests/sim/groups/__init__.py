"""Consumer groups in the simulator: the production coordinator, members of both protocols, P8 and P9."""
