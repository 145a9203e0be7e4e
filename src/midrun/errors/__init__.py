"""Every error midrun raises, as one tree.

    MidrunError
    ├── ControlRefused         a control does not fit where the run stands
    ├── RunOver                what somebody waits for will never be
    ├── NotJson                user data that JSON cannot say
    ├── TooLarge               user data beyond its bound
    ├── CheckpointRefused      a checkpoint that must not be resumed
    ├── ModelFailed            a provider said no, or broke off
    ├── OutcomeUnknown         a tool says that nobody knows whether it took effect
    ├── ToolsUnreachable       the server that a tool lives in does not answer
    ├── EngineLost             somebody cancelled midrun's own tasks: nothing is driven here
    ├── ServerUnreachable      a client's server does not answer
    ├── ServerRefused          a client's server said no: the token, a limit, a bad request
    ├── Misconfigured          an agent, tool or store that cannot work as it is declared
    ├── JournalCorrupt         a stored line that cannot be what was written
    ├── JournalTooNew          a stored line that newer code wrote
    └── StoreError             the store said no, and nothing was applied
        ├── RunNotFound        (also a LookupError)
        ├── RunExists
        ├── SeqConflict        somebody appended first: read and decide again
        ├── StaleEpoch         a newer lease holder exists: drop everything
        ├── LeaseHeld
        ├── NoRoom             a limit of the fleet is reached: the run waits
        ├── HaltInForce
        ├── KindRefused        this writer may not append that kind of entry
        ├── CursorRefused      (also a ValueError)
        ├── StoreBusy          try again later
        ├── StoreFull          make room, then try again
        ├── StoreUnreachable   cannot be opened, or does not answer
        ├── StoreDamaged
        ├── StoreForeign       not ours, or of a newer version
        ├── StoreKeyRefused    its chains are made with another key, or with none
        ├── SqliteConflict     sqlite3 may not open the file of a store in the same process
        └── StoreClosed

`code` is stable and unique; branch on it or on the class, never on the text. All fields are in
`args`, so every error pickles. A pause is an entry, not an error.
"""

from midrun.errors.root import (
    MidrunError,
)
from midrun.errors.runs import (
    CheckpointRefused,
    ControlRefused,
    EngineLost,
    JournalCorrupt,
    JournalTooNew,
    Misconfigured,
    ModelFailed,
    NotJson,
    OutcomeUnknown,
    RunOver,
    TooLarge,
    ToolsUnreachable,
)
from midrun.errors.servers import ServerRefused, ServerUnreachable
from midrun.errors.stores import (
    CursorRefused,
    HaltInForce,
    KindRefused,
    LeaseHeld,
    NoRoom,
    RunExists,
    RunNotFound,
    SeqConflict,
    SqliteConflict,
    StaleEpoch,
    StoreBusy,
    StoreClosed,
    StoreDamaged,
    StoreError,
    StoreForeign,
    StoreFull,
    StoreKeyRefused,
    StoreUnreachable,
)

__all__ = [
    "CheckpointRefused",
    "ControlRefused",
    "CursorRefused",
    "EngineLost",
    "HaltInForce",
    "JournalCorrupt",
    "JournalTooNew",
    "KindRefused",
    "LeaseHeld",
    "MidrunError",
    "Misconfigured",
    "ModelFailed",
    "NoRoom",
    "NotJson",
    "OutcomeUnknown",
    "RunExists",
    "RunNotFound",
    "RunOver",
    "SeqConflict",
    "ServerRefused",
    "ServerUnreachable",
    "SqliteConflict",
    "StaleEpoch",
    "StoreBusy",
    "StoreClosed",
    "StoreDamaged",
    "StoreError",
    "StoreForeign",
    "StoreFull",
    "StoreKeyRefused",
    "StoreUnreachable",
    "TooLarge",
    "ToolsUnreachable",
]
