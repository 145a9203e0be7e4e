// A chat of assistant-ui with its AI SDK runtime, and nothing of Midrun's.
import {
  AssistantRuntimeProvider,
  ComposerPrimitive,
  MessagePrimitive,
  ThreadPrimitive,
} from "@assistant-ui/react";
import { AssistantChatTransport, useChatRuntime } from "@assistant-ui/react-ai-sdk";
import { lastAssistantMessageIsCompleteWithApprovalResponses as decided } from "ai";
import { createRoot } from "react-dom/client";

const { url, token } = document.getElementById("chat").dataset;
const headers = { Authorization: `Bearer ${token}` };

const Tool = ({ toolName, approval, respondToApproval }) => (
  <div>
    {toolName}
    {approval && approval.approved === undefined && (
      <button onClick={() => respondToApproval({ approved: true })}>Approve</button>
    )}
  </div>
);

const Message = () => (
  <MessagePrimitive.Root>
    <MessagePrimitive.Parts components={{ tools: { Fallback: Tool } }} />
  </MessagePrimitive.Root>
);

const User = () => <section aria-label="user"><Message /></section>;
const Assistant = () => <section aria-label="assistant"><Message /></section>;

function Chat() {
  const runtime = useChatRuntime({
    transport: new AssistantChatTransport({ api: url, headers }),
    sendAutomaticallyWhen: decided,
  });
  return (
    <AssistantRuntimeProvider runtime={runtime}>
      <ThreadPrimitive.Root>
        <ThreadPrimitive.Messages
          components={{ UserMessage: User, AssistantMessage: Assistant }}
        />
        <ComposerPrimitive.Root>
          <ComposerPrimitive.Input aria-label="Message" />
          <ComposerPrimitive.Send>Send</ComposerPrimitive.Send>
          <ComposerPrimitive.Cancel>Stop</ComposerPrimitive.Cancel>
        </ComposerPrimitive.Root>
      </ThreadPrimitive.Root>
    </AssistantRuntimeProvider>
  );
}

createRoot(document.getElementById("chat")).render(<Chat />);
