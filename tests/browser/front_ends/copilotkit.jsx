// CopilotKit's React chat with its unmodified packages, and nothing of Midrun's.
import { CopilotKit } from "@copilotkit/react-core";
import { useDefaultRenderTool, useInterrupt } from "@copilotkit/react-core/v2";
import { CopilotChat } from "@copilotkit/react-ui";
import { createRoot } from "react-dom/client";

const { url, token } = document.getElementById("chat").dataset;
const headers = { Authorization: `Bearer ${token}` };

function Chat() {
  useDefaultRenderTool(); // shows each call with its arguments
  useInterrupt({
    render: ({ interrupt, resolve }) => (
      <section aria-label="interrupt">
        {interrupt?.message}
        <button onClick={() => resolve({ approved: true })}>Approve</button>
      </section>
    ),
  });
  return <CopilotChat />;
}

createRoot(document.getElementById("chat")).render(
  <CopilotKit
    runtimeUrl={url}
    agent="actor"
    threadId="t"
    headers={headers}
    useSingleEndpoint={false}
    enableInspector={false}
  >
    <Chat />
  </CopilotKit>,
);
