// A desk for agents in React: a list of runs, and the chosen run in a layout of your own.
//
// Needs React 19 or newer, which passes properties and listeners to custom elements. Bundle it
// (`esbuild desk.tsx --bundle --format=esm --outfile=desk.js`) and load it in a page with
// <div id="desk" data-server="https://runs.example" data-token="…"></div>.
import "@midrun/elements";
import type { RunState } from "@midrun/elements";
import type {} from "@midrun/elements/react";
import { useState } from "react";
import { createRoot } from "react-dom/client";

const root = document.getElementById("desk")!;
// The elements are in your bundle, so they are told where the server is.
const server = { base: root.dataset.server, token: root.dataset.token };

function ChosenRun({ run }: { run: string }) {
  const [state, setState] = useState<RunState>();
  const [sent, setSent] = useState("");
  const target = { ...server, run };
  return (
    <article>
      <h2>{state ? (state.needsYou ? "Your answer is needed" : state.word) : "Loading"}</h2>
      <midrun-transcript {...target}>
        <p slot="empty">The agent has not said anything yet.</p>
      </midrun-transcript>
      <midrun-asks {...target} onmidrun-sent={(event) => setSent(event.detail.control)}>
        <p slot="empty">There is nothing to decide.</p>
      </midrun-asks>
      <midrun-report {...target} />
      <midrun-controls {...target} onmidrun-state={(event) => setState(event.detail)}>
        <button slot="actions" onClick={() => navigator.clipboard.writeText(run)}>
          Copy the id
        </button>
      </midrun-controls>
      <output>{sent}</output>
    </article>
  );
}

function Desk() {
  const [run, setRun] = useState("");
  const open = (event: CustomEvent<string>) => {
    event.preventDefault(); // show the run here, instead of on the page of the server
    setRun(event.detail);
  };
  return (
    <main>
      <h1>Desk</h1>
      <midrun-runs {...server} onmidrun-open={open} onmidrun-started={open} />
      {run && <ChosenRun key={run} run={run} />}
    </main>
  );
}

createRoot(root).render(<Desk />);
