"""Collectives in torch.compile: their operators, what Dynamo traces, the pass that fuses them, and epilogues."""
