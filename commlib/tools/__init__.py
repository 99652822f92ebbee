"""The instruments: what measures and looks. A program that imports the runtime loads nothing of them."""
