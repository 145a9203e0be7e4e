// A chat for an agent behind Midrun, with the AI SDK's own hook and nothing of Midrun's.
//
// Bundle it:
//
//     npm install ai @ai-sdk/react react react-dom esbuild
//     npx esbuild chat.jsx --bundle --format=esm --jsx=automatic --outfile=chat.js
//
// Load it in a page (`python -m http.server 3000`), and start the server with
// `--allow-origin http://127.0.0.1:3000`:
//
//     <div id="chat" data-api="http://127.0.0.1:8700/ai/clerk" data-chat="t1" data-token="…"></div>
//     <script type="module" src="chat.js"></script>
import { useChat } from "@ai-sdk/react";
import {
  DefaultChatTransport,
  lastAssistantMessageIsCompleteWithApprovalResponses as decided,
} from "ai";
import { useState } from "react";
import { createRoot } from "react-dom/client";

const { api, chat, token } = document.getElementById("chat").dataset;
const headers = { Authorization: `Bearer ${token}` };
// The server has the conversation: no storage of your own is needed.
const { messages: stored } = await (await fetch(`${api}/${chat}`, { headers })).json();

function Part({ part, decide }) {
  if (part.type === "text") return <p>{part.text}</p>;
  if (part.type !== "dynamic-tool") return null;
  return (
    <div>
      {part.toolName}
      <dl>
        {Object.entries(part.input ?? {}).map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{typeof value === "string" ? value : JSON.stringify(value)}</dd>
          </div>
        ))}
      </dl>
      {part.state === "approval-requested" && (
        <>
          <button onClick={() => decide({ id: part.approval.id, approved: true })}>Approve</button>
          <button onClick={() => decide({ id: part.approval.id, approved: false })}>Decline</button>
        </>
      )}
    </div>
  );
}

function Chat() {
  const { messages, status, error, sendMessage, addToolApprovalResponse } = useChat({
    id: chat,
    messages: stored,
    resume: true, // after a reload: replay the current reply and follow it
    transport: new DefaultChatTransport({ api, headers }),
    sendAutomaticallyWhen: decided,
  });
  const [text, setText] = useState("");
  const send = (event) => {
    event.preventDefault();
    sendMessage({ text });
    setText("");
  };
  // A pause: the text so far is kept, and the next message resumes the run.
  const stop = () => fetch(`${api}/${chat}/stop`, { method: "POST", headers });
  return (
    <main>
      {messages.map((message) => (
        <section key={message.id} aria-label={message.role}>
          {message.parts.map((part, number) => (
            <Part key={number} part={part} decide={addToolApprovalResponse} />
          ))}
        </section>
      ))}
      {error && <p role="alert">{error.message}</p>}
      <form onSubmit={send}>
        <input aria-label="Message" value={text} onChange={(e) => setText(e.target.value)} />
        <button disabled={!text}>Send</button>
        <button type="button" onClick={stop} disabled={status === "ready"}>
          Stop
        </button>
      </form>
      <output>{status}</output>
    </main>
  );
}

createRoot(document.getElementById("chat")).render(<Chat />);
