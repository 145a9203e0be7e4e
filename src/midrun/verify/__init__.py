"""Check the invariants of a journal, independently of the code that wrote it.

`journal.check_journal` checks the decoded entries, `journal.check_chain` the stored bytes.
Both return a list of `Problem`s: the invariant (`I1` to `I37`, `I41` to `I43`), the seq of the
entry, and a sentence.

`check_journal` makes one pass. A record goes to every check class that handles its kind, then
into the `Ledger`, then into `FoldCheck`, which folds the journal with the real `evolve`. While
a check looks at a record, the ledger holds the journal *before* that record.

The checks never call `decide` or the scheduler, and the ledger is a second, much simpler model
of a run, written from the invariants. So a bug in the state machine cannot hide itself: at the
end, `FoldCheck` compares the folded state with the ledger. Do not share code with `core` here
beyond the entry types. Start with `journal`, `checks` and `ledger`; then one module per topic.
"""
