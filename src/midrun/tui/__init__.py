"""The terminal control bar: a run's feed scrolls above, its controls stay below.

`session.attend` shows one run until the user leaves or the run ends. `TerminalSession`
runs four tasks beside the prompt_toolkit application: they follow the feed, refresh the view,
print lines above the bar, and send controls.

Data flows one way. `feed_lines` turns the events of a run into lines: it adds an icon and a
style to the sentence of each event. `screen` prints those lines above the bar, and draws the
bar from the newest `RunView` with `bar`, which is pure. It maps key presses to methods of
`BarController`, which opens dialogs and queues controls. A key has the meaning that the screen
showed when it was pressed: the controller sends the revision of its view along, and the run
refuses a stale control. `stderr_capture` keeps the output of tool processes off the bar.

All foreign text passes through `escape_controls` before it reaches the terminal. `styled_text`,
`wrap` and `stderr_capture` do not need prompt_toolkit's application; the command line uses them
without it. Start reading with `session`.
"""
