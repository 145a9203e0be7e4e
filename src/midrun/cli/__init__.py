"""The `midrun` command: every operation on runs, for a shell.

`main` parses the arguments. `command_runner` fills in settings from the environment, runs one
command and returns its exit code; it is also the only place that turns an expected error into a
message. It is imported after parsing, because start-up time matters in a shell.

- `command_specs` lists the commands with their functions, help, examples and arguments;
  `parser` builds the argparse parser from it. The arguments of a command are added only if that
  command was typed. `settings` adds the values of the environment and of a file.
- `targets` turns arguments into objects: the store or server, a run or ask by the beginning of
  its id, and the agents of an app.
- The modules `…_commands`, `demo` and `completion` hold one function per command; the controls
  of `runs/control_specs.py` share one.
- `follow` shows a run until it rests: with the control bar of `midrun.tui`, or as plain lines.
- `output` writes results: lines for people, or one JSON value per line with
  `--json`. `hints` writes the command to type next.

A command uses only the protocols in `runs/protocols.py`, so it works the same on a store and on
a server. All text from models, tools and journals passes through
`tui.styled_text.escape_controls` before it reaches the terminal. Start reading with `main`,
then `control_commands`.
"""
