"""`verify`: whether a journal keeps the promises. A second pair of eyes beside the machine.

`journal.check_journal` looks at the entries, `chain.check_chain` at the stored bytes. Nothing
here asks the machine what it would have decided: every subject keeps its own small books,
written from the invariants (`I1` to `I37`, `I41`, `I42`), so that a fault in the machine cannot
hide itself.
"""
