// Controls an unmodified client of AG-UI or CopilotKit with one JSON command per input line.
//
// It prints one JSON object per line: each event, and at the end of a segment its result.
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";

const [, , packages, kind, url, token] = process.argv;
const require = createRequire(pathToFileURL(`${packages}/package.json`));
const load = (name) => import(pathToFileURL(require.resolve(name)));
const print = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);
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
    const poll = () => (connected() ? done() : setTimeout(poll, 10));
    poll();
  });
  print({ agents: Object.keys(core.agents) });
} else {
  const { HttpAgent } = await load(kind);
  agent = new HttpAgent({ url, headers });
}

async function run({ thread, say, result, resume, name, connect, state, tools, context }) {
  const used = core ? core.getAgent(name) : agent;
  used.threadId = thread;
  if (result) used.addMessage({ id: `r-${used.messages.length}`, role: "tool", ...result });
  if (say) used.addMessage({ id: `u-${used.messages.length}`, role: "user", content: say });
  if (state !== undefined) used.setState(state);
  let outcome = null;
  const watch = {
    onEvent: ({ event }) => print({ event }),
    onRunFinishedEvent: (finished) => {
      outcome = finished.outcome ?? "success";
    },
    onRunErrorEvent: ({ event }) => {
      outcome = `error ${event.code}`;
    },
  };
  try {
    if (core) {
      const subscription = used.subscribe(watch);
      if (connect) await core.connectAgent({ agent: used });
      else if (resume) await used.runAgent({ resume });
      else await core.runAgent({ agent: used });
      subscription.unsubscribe();
    } else {
      await used.runAgent({ resume, tools, context }, watch);
    }
  } catch (error) {
    print({ thrown: String(error.message) });
  }
  const pending = (used.pendingInterrupts ?? []).map((interrupt) => interrupt.id);
  print({ done: { outcome, pending, messages: used.messages, state: used.state } });
}

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  if (command.run) run(command.run);
  if (command.abort) agent.abortRun();
  if (command.stop) core.stopAgent({ agent: core.getAgent(command.stop) });
}
process.exit(0);
