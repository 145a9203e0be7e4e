// @ts-check
/**
 * The script of our own pages: sign in, then show `<midrun-runs>` or `<midrun-run>`.
 *
 * A sign-in link carries its credential behind the `#`, which no browser sends and no server logs.
 * It is removed from the address first of all, and exchanged for a session.
 */
import { Api, DEFAULT_BASE, Problem, signIn, signOut } from "./api.js";
import { clearDrafts } from "./drafts.js";
import { createNotificationButton, notify } from "./notifications.js";
import { readable } from "./template.js";

/** @typedef {{name: string, role: string}} Session */

const SESSION_PATH = "/v1/session";
const main = /** @type {HTMLElement} */ (document.querySelector("main"));

/** Remove the credential from the address and the history; return it, or "". @returns {string} */
function takeCredential() {
  const params = new URLSearchParams(location.hash.slice(1));
  const [code, token] = [params.get("code"), params.get("token")];
  if (code === null && token === null) return "";
  history.replaceState(null, "", location.pathname + location.search);
  return code === null ? `Bearer ${token}` : `Code ${code}`;
}

/** @param {keyof HTMLElementTagNameMap} tag @param {object} [properties] @param {...(Node|string)} children */
function createElement(tag, properties = {}, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children);
  return element;
}

/** Path of the server at which an identity provider signs browsers in; "" if it uses none. */
let signInPath = "";

/** Show the sign-in form. @param {string} [problem] why the last attempt failed */
function showSignIn(problem = "") {
  document.title = "Sign in – Midrun";
  const input = createElement("input", { id: "token", type: "password", autocomplete: "off", required: true });
  const form = createElement(
    "form",
    { className: "sign-in" },
    createElement("h1", {}, "Sign in"),
    ...(signInPath
      ? [createElement("p", {}, createElement("a", { href: DEFAULT_BASE + signInPath }, "Sign in with your organisation"))]
      : []),
    createElement(
      "p",
      {},
      createElement("code", {}, "midrun serve"),
      " prints a link that signs you in, unless it was started with a token.",
    ),
    createElement(
      "p",
      {},
      "Or paste your token. On your own machine it is a file in ",
      createElement("code", {}, "~/.local/state/midrun"),
      ", unless you chose one yourself. For another server, ask its operator.",
    ),
    createElement("label", { htmlFor: "token" }, "Token"),
    input,
    createElement("button", { className: "main" }, "Sign in"),
  );
  if (problem) form.append(createElement("p", { role: "alert" }, problem));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    void start(`Bearer ${/** @type {HTMLInputElement} */ (input).value.trim()}`);
  });
  document.querySelector("#session")?.replaceChildren();
  main.replaceChildren(form);
  input.focus();
}

/** Show the element of this page. @param {Session} session */
async function showPage(session) {
  const signOutButton = createElement("button", {}, "Sign out");
  signOutButton.addEventListener("click", async () => {
    await signOut();
    clearDrafts();
    location.reload();
  });
  document.querySelector("#session")?.replaceChildren(
    createElement("span", {}, session.name, createElement("span", { className: "role" }, ` (${session.role})`)),
    createNotificationButton(),
    signOutButton,
  );
  const isList = document.body.dataset.page === "list";
  await (isList ? import("./runs-list.js") : import("./midrun.js"));
  const element = document.createElement(isList ? "midrun-runs" : "midrun-run");
  if (!isList) {
    element.setAttribute("run", decodeURIComponent(location.pathname.split("/").pop() ?? ""));
    element.setAttribute("global-keys", "");
  }
  main.replaceChildren(element);
}

/** Sign in with a credential, or with the session of an earlier visit if it is "". @param {string} credential */
async function start(credential) {
  try {
    await showPage(credential ? await signIn(credential) : await new Api().get(SESSION_PATH));
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    signInPath = error.signInPath || signInPath;
    if (error.status !== 401) showSignIn(error.message);
    else if (!credential.startsWith("Code")) showSignIn(credential && "This token is not valid.");
    // A link works once. Where this browser has used it before, its session still counts.
    else if (await hasSession()) await start("");
    else showSignIn("This link was used before, or has expired.");
  }
}

/** Tell whether the session of an earlier visit is still valid. */
const hasSession = () =>
  new Api().get(SESSION_PATH).then(
    () => true,
    () => false,
  );

document.addEventListener("midrun-title", (event) => {
  document.title = readable(event.detail);
});
document.addEventListener("midrun-news", (event) => {
  notify(event.detail, `${DEFAULT_BASE}/runs/${event.detail.run}`);
});
document.addEventListener("midrun-started", (event) => {
  event.preventDefault(); // each run has a page of its own; go there
  location.href = `${DEFAULT_BASE}/runs/${event.detail}`;
});
document.addEventListener("midrun-signed-out", () => showSignIn("You are signed out."));
addEventListener("hashchange", () => {
  const credential = takeCredential(); // a sign-in link was pasted into a tab with this page
  if (credential) void start(credential);
});
void start(takeCredential());
