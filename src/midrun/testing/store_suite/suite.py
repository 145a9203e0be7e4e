"""The whole store suite as one class."""

from midrun.testing.store_suite.concurrency import Crowds
from midrun.testing.store_suite.journals import Journals
from midrun.testing.store_suite.leases import Halts, Leases
from midrun.testing.store_suite.limits import Limits
from midrun.testing.store_suite.lists import Lists
from midrun.testing.store_suite.refusals import Refusals
from midrun.testing.store_suite.threads import Threads


class StoreSuite(Journals, Refusals, Leases, Limits, Halts, Lists, Threads, Crowds):
    """The contract of a store. Override the `store` fixture; it must use `clock`."""
