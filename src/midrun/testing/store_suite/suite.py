"""The whole suite, in one class to inherit from."""

from midrun.testing.store_suite.concurrency import Crowds
from midrun.testing.store_suite.journals import Journals
from midrun.testing.store_suite.leases import Halts, Leases
from midrun.testing.store_suite.limits import Limits
from midrun.testing.store_suite.lists import Lists
from midrun.testing.store_suite.refusals import Refusals
from midrun.testing.store_suite.threads import Threads


class StoreSuite(Journals, Refusals, Leases, Limits, Halts, Lists, Threads, Crowds):
    """Everything a store promises. Give a `store` fixture that uses the `clock` fixture."""
