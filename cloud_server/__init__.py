"""The cloud tier: decides rounds, owns global state and the public REST API. It exchanges models with edges only."""
