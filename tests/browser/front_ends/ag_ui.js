// A page with the clients of AG-UI and CopilotKit, and nothing of Midrun's.
import { HttpAgent } from "@ag-ui/client";
import { CopilotKitCore } from "@copilotkit/core";

const { url, token } = document.getElementById("chat").dataset;
const headers = { Authorization: `Bearer ${token}` };

window.agent = new HttpAgent({ url: `${url}/agui/actor`, headers, threadId: "t" });

// Runs one segment; returns the outcome, the open interrupts and the messages.
window.runSegment = async ({ say, ...more }) => {
  const { agent } = window;
  if (say) agent.addMessage({ id: `u-${agent.messages.length}`, role: "user", content: say });
  let outcome = null;
  await agent.runAgent(more, {
    onRunFinishedEvent: (finished) => {
      outcome = finished.outcome ?? "success";
    },
  });
  const pending = (agent.pendingInterrupts ?? []).map((interrupt) => interrupt.id);
  return { outcome, pending, messages: agent.messages, state: agent.state };
};

// Connects to the runtime as CopilotKit's provider does, and sends one message.
window.runCopilotKit = async (say) => {
  const core = new CopilotKitCore({
    runtimeUrl: `${url}/copilotkit`,
    runtimeTransport: "rest",
    headers,
  });
  await new Promise((done) => {
    const poll = () =>
      core.runtimeConnectionStatus === "connected" ? done() : setTimeout(poll, 10);
    poll();
  });
  const agent = core.getAgent("actor");
  agent.threadId = "copilotkit";
  agent.addMessage({ id: "u-1", role: "user", content: say });
  await core.runAgent({ agent });
  return agent.messages;
};
