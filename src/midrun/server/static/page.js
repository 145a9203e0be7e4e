// @ts-check
/**
 * The pages: sign in, then show the list or the run. Everything else is in the elements.
 *
 * A link carries its credential behind the `#`, which no browser sends and no server logs. It
 * is taken out of the address before anything else happens, and exchanged for a session.
 */
import { Api, HOME, Problem, signIn, signOut } from "./api.js";
import { forget } from "./drafts.js";
import { noticeButton, notify } from "./notices.js";
import { readable } from "./template.js";

/** @typedef {{name: string, role: string}} Who */

const SESSION = "/v1/session";
const main = /** @type {HTMLElement} */ (document.querySelector("main"));

/** Take the credential out of the address, and out of the history. @returns {string} */
function credential() {
  const given = new URLSearchParams(location.hash.slice(1));
  const [code, token] = [given.get("code"), given.get("token")];
  if (code === null && token === null) return "";
  history.replaceState(null, "", location.pathname + location.search);
  return code === null ? `Bearer ${token}` : `Code ${code}`;
}

/** @param {keyof HTMLElementTagNameMap} tag @param {object} [given] @param {...(Node|string)} inside */
function made(tag, given = {}, ...inside) {
  const element = Object.assign(document.createElement(tag), given);
  element.append(...inside);
  return element;
}

/** Ask for a token. @param {string} [problem] why the last one was not taken */
function askForToken(problem = "") {
  document.title = "Sign in – Midrun";
  const input = made("input", { id: "token", type: "password", autocomplete: "off", required: true });
  const form = made(
    "form",
    { className: "sign-in" },
    made("h1", {}, "Sign in"),
    made(
      "p",
      {},
      made("code", {}, "midrun serve"),
      " prints a link that signs you in, unless it was given a token.",
    ),
    made(
      "p",
      {},
      "Or paste your token. On your own machine it is a file in ",
      made("code", {}, "~/.local/state/midrun"),
      ", unless you chose one. For another server, ask its operator.",
    ),
    made("label", { htmlFor: "token" }, "Token"),
    input,
    made("button", { className: "main" }, "Sign in"),
  );
  if (problem) form.append(made("p", { role: "alert" }, problem));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    void start(`Bearer ${/** @type {HTMLInputElement} */ (input).value.trim()}`);
  });
  document.querySelector("#who")?.replaceChildren();
  main.replaceChildren(form);
  input.focus();
}

/** Show what the page is for. @param {Who} who */
async function show(who) {
  const leave = made("button", {}, "Sign out");
  leave.addEventListener("click", async () => {
    await signOut();
    forget();
    location.reload();
  });
  document.querySelector("#who")?.replaceChildren(
    made("span", {}, who.name, made("span", { className: "role" }, ` (${who.role})`)),
    noticeButton(),
    leave,
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

/** Sign in with what there is: a credential, or the cookie of last time. @param {string} shown */
async function start(shown) {
  try {
    await show(shown ? await signIn(shown) : await new Api().get(SESSION));
  } catch (error) {
    if (!(error instanceof Problem)) throw error;
    if (error.status !== 401) askForToken(error.message);
    else if (!shown.startsWith("Code")) askForToken(shown && "Nobody has this token.");
    else if (await hasSession()) await start("");
    else askForToken("This link was used before, or is too old.");
  }
}

/** Tell whether the cookie of last time is good. */
const hasSession = () =>
  new Api().get(SESSION).then(
    () => true,
    () => false,
  );

document.addEventListener("midrun-title", (event) => {
  document.title = readable(/** @type {CustomEvent<string>} */ (event).detail);
});
document.addEventListener("midrun-news", (event) => {
  const news = /** @type {CustomEvent<import("./newsworthy.js").News>} */ (event).detail;
  notify(news, `${HOME}/runs/${news.run}`);
});
document.addEventListener("midrun-started", (event) => {
  event.preventDefault(); // a run has an address of its own
  location.href = `${HOME}/runs/${/** @type {CustomEvent<string>} */ (event).detail}`;
});
document.addEventListener("midrun-signed-out", () => askForToken("You are signed out."));
addEventListener("hashchange", () => {
  const shown = credential(); // the link, pasted where the page is open already
  if (shown) void start(shown);
});
void start(credential());
