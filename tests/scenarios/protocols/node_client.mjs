// The unmodified clients of AG-UI and CopilotKit, told what to do by lines of JSON.
//
// Each line names a client and what it should do; each answer is a line: events as they come,
// and at last what became of it.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [, , packages, kind, url, token] = process.argv;
const require = createRequire(pathToFileURL(`${packages}/package.json`));
const load = (name) => import(pathToFileURL(require.resolve(name)));
const tell = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
for (const name of ["log", "warn", "error", "info", "debug"]) console[name] = () => {};

const headers = { Authorization: `Bearer ${token}` };
let agent;
let core;

if (kind === "copilotkit") {
  const location = { origin: new URL(url).origin, href: url };
  globalThis.window = { location, addEventListener() {}, removeEventListener() {} };
  const { CopilotKitCore } = await load("@copilotkit/core");
  core = new CopilotKitCore({ runtimeUrl: url, runtimeTransport: "rest", headers });
  const connected = () => core.runtimeConnectionStatus === "connected";
  await new Promise((done) => {
    const look = () => (connected() ? done() : setTimeout(look, 10));
    look();
  });
  tell({ agents: Object.keys(core.agents) });
} else {
  const { HttpAgent } = await load(kind);
  agent = new HttpAgent({ url, headers });
}

async function run({ thread, say, resume, name, connect, state, tools, context }) {
  const used = core ? core.getAgent(name) : agent;
  used.threadId = thread;
  if (say) used.addMessage({ id: `u-${used.messages.length}`, role: "user", content: say });
  if (state !== undefined) used.setState(state);
  let outcome = null;
  const watch = {
    onEvent: ({ event }) => tell({ event }),
    onRunFinishedEvent: (told) => {
      outcome = told.outcome ?? "success";
    },
    onRunErrorEvent: ({ event }) => {
      outcome = `error ${event.code}`;
    },
  };
  try {
    if (core) {
      const watching = used.subscribe(watch);
      await (connect ? core.connectAgent({ agent: used }) : core.runAgent({ agent: used }));
      watching.unsubscribe();
    } else {
      await used.runAgent({ resume, tools, context }, watch);
    }
  } catch (error) {
    tell({ thrown: String(error.message) });
  }
  const pending = (used.pendingInterrupts ?? []).map((one) => one.id);
  tell({ done: { outcome, pending, messages: used.messages, state: used.state } });
}

for await (const line of createInterface({ input: process.stdin })) {
  const told = JSON.parse(line);
  if (told.run) run(told.run);
  if (told.abort) agent.abortRun();
  if (told.stop) core.stopAgent({ agent: core.getAgent(told.stop) });
}
process.exit(0);
