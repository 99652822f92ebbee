"""Plans: which algorithm runs at which size, as data that `commlib tune` writes and the communicator reads."""

from commlib.plan.plan import Plan as Plan
