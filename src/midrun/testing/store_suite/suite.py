"""The whole store suite as one class."""

from midrun.testing.store_suite.concurrency import ConcurrencyTests
from midrun.testing.store_suite.deletion import DeletionTests
from midrun.testing.store_suite.files import FileTests
from midrun.testing.store_suite.journals import JournalTests
from midrun.testing.store_suite.leases import HaltTests, LeaseTests
from midrun.testing.store_suite.limits import LimitTests, QuotaTests
from midrun.testing.store_suite.lists import ListTests
from midrun.testing.store_suite.refusals import RefusalTests
from midrun.testing.store_suite.tenants import TenantTests
from midrun.testing.store_suite.threads import ThreadTests


class StoreSuite(
    JournalTests,
    FileTests,
    RefusalTests,
    LeaseTests,
    LimitTests,
    QuotaTests,
    HaltTests,
    ListTests,
    ThreadTests,
    TenantTests,
    ConcurrencyTests,
    DeletionTests,
):
    """The contract of a store. Override the `store` fixture; it must use `clock`."""
