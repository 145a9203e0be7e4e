"""Turn journal entries and states into the text that people read.

This package is pure and sits one layer above `core`. It holds every sentence that the page,
the terminal and the command line show about a run, so that all of them say the same:

- `entries` and `call_entries`: the text of each journal entry (`describe_entry`): its subject,
  sentence, short form and tone. The text depends on the states before and after the entry,
  because an entry holds ids and not names.
- `status`: the status line of a run: a word, a note, and a text for screen readers.
- `buttons`: the pause, redirect and cancel buttons, each with its consequence right now.
- `report`: the list of all calls with their outcome, shown after a cancel.
- `titles`: the title of a call: the one that its tool declares, or one of name and arguments.
- `phrases`: names of actors and calls, quotations, durations, lists.
- `hidden_characters`: makes invisible characters visible.

Invariant: no sentence from here is stored in a journal. Those texts are in
`core.journaled_text`; the journal also has declared titles. So a sentence can be improved at
any time; `python -m tools.make_golden` writes the sample texts in `tests/journals` again. Start
reading with `entries.describe_entry`.
"""
