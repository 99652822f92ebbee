"""What a Communicator is made of: how its calls are made, who watches them, and how it ends."""
