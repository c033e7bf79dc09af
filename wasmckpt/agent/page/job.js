// One job: what it is, what it writes, its images, its moves, and what can be done with it.

import { ask, follow, job } from "./agent.js";
import { $, attempt, clock, facts, make, say, since } from "./dom.js";
import { showImages } from "./memory.js";
import { forgetMoves, noteMove } from "./moves.js";
import { runtimes } from "./node.js";

const MOST = 200_000; // characters of a log that are kept here
const ALLOWED = {
  checkpoint: ["running", "hibernated"], migrate: ["running"], hibernate: ["running"], wake: ["hibernated"],
  stop: ["pending", "starting", "running", "freezing", "hibernated"],
  restart: ["pending", "running", "hibernated", "stopped", "exited", "failed"],
};

let open = null; // { id, name, log: AbortController }
export const openJob = () => open?.id ?? null;

export async function showJob(id, { focus = false } = {}) {
  const found = await ask("GET", job(id));
  const fresh = open?.id !== id;
  if (fresh) {
    open?.log.abort();
    open = { id, name: found.name, log: new AbortController() };
    forgetMoves();
    $("events").replaceChildren();
    $("memories").replaceChildren();
    const page = await ask("GET", `/events?job=${encodeURIComponent(id)}&limit=1000`);
    page.items.forEach(noteEvent);
    followLog("stdout");
  }
  open.state = found.state;
  $("job").hidden = false;
  $("job-title").textContent = found.name;
  facts($("job-facts"), [
    ["State", make("span", { class: `state ${found.state}` }, found.state + (found.why ? ` (${found.why})` : ""))],
    ["Since", since(found.changed)], ["Runtime", found.runtime], ["Arguments", found.spec.args.join(" ")],
    ["Exit code", found.exit_code === null ? null : String(found.exit_code)], ["Results", found.results.join(" ")],
    ["Module", found.spec.module.slice(0, 16)], ["Process", found.pid && String(found.pid)],
    ["Runs", `${found.runs}${found.restarts ? `, ${found.restarts} crashes in a row` : ""}`],
    ["Labels", Object.entries(found.labels).map((pair) => pair.join("=")).join(" ")],
  ]);
  $("problem").hidden = !found.problem;
  $("problem").textContent = found.problem ? [found.problem.title, found.problem.hint].filter(Boolean).join(": ") : "";
  for (const button of $("verbs").children) button.disabled = !ALLOWED[button.dataset.do].includes(found.state);
  await showImages(id, { again: fresh });
  if (focus) { $("job").focus(); $("job").scrollIntoView({ block: "start" }); }
}

export function closeJob() {
  open?.log.abort();
  open = null;
  $("job").hidden = true;
}

export function noteEvent(event) {
  if (event.job !== open?.id) return;
  $("events").prepend(make("li", {}, make("time", {}, clock(event.at)), event.text));
  while ($("events").children.length > 200) $("events").lastChild.remove();
  if (event.kind === "migration") noteMove(event);
}

function followLog(stream) {
  open.log.abort();
  open.log = new AbortController();
  const { id, log: { signal } } = open;
  const pane = $("log");
  pane.replaceChildren();
  pane.setAttribute("aria-labelledby", `tab-${stream}`);
  for (const tab of document.querySelectorAll("[data-log]")) {
    tab.setAttribute("aria-selected", String(tab.dataset.log === stream));
    tab.tabIndex = tab.dataset.log === stream ? 0 : -1;
  }
  const add = (text) => {
    const atEnd = pane.scrollTop + pane.clientHeight >= pane.scrollHeight - 4;
    const kept = (pane.textContent + text).slice(-MOST);
    pane.replaceChildren(kept);
    if (atEnd) pane.scrollTop = pane.scrollHeight;
  };
  follow((last) => `${job(id)}/logs/${stream}?follow=true${last === null ? "" : `&offset=${last}`}`, signal, (event) => {
    if (event.kind === "output") add(event.data.text ?? atob(event.data.base64));
    if (event.kind === "gap") add("\n[…]\n");
  }, (event) => event.kind === "end");
}

function answered(dialog) {
  return new Promise((done) => {
    dialog.returnValue = "no";
    dialog.showModal();
    dialog.addEventListener("close", () => done(dialog.returnValue === "yes"), { once: true });
  });
}

const verbs = {
  checkpoint: (id) => ask("POST", `${job(id)}/checkpoints`),
  hibernate: (id) => ask("POST", `${job(id)}/hibernate`),
  wake: (id) => ask("POST", `${job(id)}/wake`),
  stop: (id) => ask("POST", `${job(id)}/stop`, { checkpoint: false }),
  async restart(id) {
    $("restart-runtime").replaceChildren(make("option", { value: "" }, "the same"),
      ...runtimes.map((name) => make("option", { value: name }, name)));
    if (!await answered($("ask-restart"))) return;
    if ($("restart-from").value === "image") {
      await ask("POST", `${job(id)}/restore`, { runtime: $("restart-runtime").value || null });
    } else {
      await ask("POST", `${job(id)}/stop`, { checkpoint: false });
      await ask("POST", `${job(id)}/start`);
    }
  },
  async migrate(id) {
    if (!await answered($("ask-migrate"))) return;
    const given = { to: $("migrate-to").value, runtime: $("migrate-runtime").value };
    if ($("migrate-token").value) given.token = $("migrate-token").value;
    $("migrate-token").value = "";
    await ask("POST", `${job(id)}/migrations`, given);
  },
};

export function jobButtons(changed) {
  $("verbs").addEventListener("click", async ({ target: button }) => {
    const verb = button.dataset.do;
    if (!verb || !open) return;
    const { id, name } = open;
    if (verb === "stop" && !confirm(`Stop ${name} without an image?`)) return;
    await attempt(button, `${verb} of ${name}`, () => verbs[verb](id));
    if (open) await showJob(id).catch((problem) => say(problem.message, true));
    changed();
  });
  for (const tab of document.querySelectorAll("[data-log]")) {
    tab.addEventListener("click", () => followLog(tab.dataset.log));
    tab.addEventListener("keydown", ({ key }) => {
      if (key !== "ArrowLeft" && key !== "ArrowRight") return;
      const other = [...document.querySelectorAll("[data-log]")].find((one) => one !== tab);
      other.focus();
      followLog(other.dataset.log);
    });
  }
  $("image").addEventListener("change", () => showImages(open.id, { again: true }).catch((p) => say(p.message, true)));
}
