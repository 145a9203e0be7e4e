// Controls the unmodified `ai` package, versions 6 and 7, with one JSON command per input line.
//
// It uses the class that `useChat` is made of and its default transport. It prints one JSON
// object per line: the chat after each change of its messages, and when a command has ended.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [, , packages, kind, url, token] = process.argv;
const require = createRequire(pathToFileURL(`${packages}/package.json`));
const ai = await import(pathToFileURL(require.resolve(kind)));
const print = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
for (const name of ["log", "warn", "error", "info", "debug"]) console[name] = () => {};

const headers = { Authorization: `Bearer ${token}` };

class State {
  status = "ready";
  error = undefined;
  #messages = [];
  get messages() {
    return this.#messages;
  }
  set messages(messages) {
    this.#messages = messages;
    print({ messages });
  }
  pushMessage = (message) => {
    this.messages = [...this.messages, message];
  };
  popMessage = () => {
    this.messages = this.messages.slice(0, -1);
  };
  replaceMessage = (index, message) => {
    this.messages = this.messages.map((old, number) => (number === index ? message : old));
  };
  snapshot = (value) => structuredClone(value);
}

class Chat extends ai.AbstractChat {
  constructor(id, messages) {
    const state = new State();
    state.messages = messages;
    super({
      id,
      state,
      transport: new ai.DefaultChatTransport({ api: url, headers }),
      sendAutomaticallyWhen: ai.lastAssistantMessageIsCompleteWithApprovalResponses,
      onError: (error) => print({ thrown: String(error.message) }),
    });
  }
}

let chat;
const commands = {
  open: async ({ id, load }) => {
    const loaded = load ? await (await fetch(`${url}/${id}`, { headers })).json() : {};
    chat = new Chat(id, loaded.messages ?? []);
  },
  send: (text) => chat.sendMessage({ text }),
  edit: (text) => chat.sendMessage({ text, messageId: chat.messages[0].id }),
  resume: () => chat.resumeStream(),
  regenerate: () => chat.regenerate(),
  stop: async (id) => {
    const reply = await fetch(`${url}/${id}/stop`, { method: "POST", headers });
    print({ stopped: (await reply.json()).stopped });
  },
  leave: () => chat.stop(),
  decide: ({ approved, reason }) => {
    const parts = chat.lastMessage.parts;
    const { id } = parts.find((part) => part.state === "approval-requested").approval;
    return chat.addToolApprovalResponse({ id, approved, reason });
  },
};

for await (const line of createInterface({ input: process.stdin })) {
  const [[name, argument]] = Object.entries(JSON.parse(line));
  Promise.resolve(commands[name](argument))
    .catch((error) => print({ thrown: String(error.message) }))
    .then(() => print({ done: name, status: chat.status, messages: chat.messages }));
}
process.exit(0);
