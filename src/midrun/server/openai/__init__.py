"""The protocols of OpenAI: chat completions, and responses.

The model of a request is an agent. `chat_completions.py` serves `POST /chat/completions`, where
a client knows a thread by a header or a key of `metadata`, or keeps the conversation itself.
`responses.py` serves `/responses`, where each response has an id: it names a run and the entry
at which the response begins, so that it can be retrieved, followed and cancelled later.

Both send a message by the rules of `chat_threads` and translate the events of its reply. The
tools of an agent run in the server, so a call is never sent as a call that the client makes.
`server/rest_text.py` has the text at the end of a reply: these protocols have no pause and no
question, and their clients show text. `requests.py` has the code that both modules share.
"""
