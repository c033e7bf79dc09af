// The list of jobs.

import { ask } from "./agent.js";
import { $, make, since } from "./dom.js";

const LIVE = ["pending", "starting", "running", "freezing"];
let shown = [];
let next = null;
let chosen = null;

function rows(open) {
  $("none").hidden = shown.length > 0;
  $("more").hidden = next === null;
  const focused = document.activeElement?.dataset?.job;
  $("rows").replaceChildren(...shown.map((job) => make("tr", { "aria-selected": String(job.id === chosen) },
    make("td", {}, make("button", { type: "button", "data-job": job.id, onclick: () => open(job.id) }, job.name)),
    make("td", { class: `state ${job.state}` }, job.state),
    make("td", {}, job.runtime),
    make("td", {}, make("span", { title: new Date(job.changed * 1000).toLocaleString() }, since(job.changed))),
    make("td", {}, job.checkpoint === null ? "" : String(job.checkpoint)))));
  if (focused) document.querySelector(`[data-job="${CSS.escape(focused)}"]`)?.focus();
}

// `open(id)`: somebody wants to see that job.
export async function showJobs(open, { more = false } = {}) {
  const wanted = $("states").value;
  const states = wanted === "live" ? LIVE : wanted ? [wanted] : [];
  const query = new URLSearchParams([["limit", more ? 100 : Math.max(50, Math.min(shown.length, 500))],
    ...states.map((state) => ["state", state]), ...(more && next ? [["cursor", next]] : [])]);
  const page = await ask("GET", `/jobs?${query}`);
  shown = more ? [...shown, ...page.items] : page.items;
  next = page.next;
  rows(open);
}

export function choose(id, open) {
  chosen = id;
  rows(open);
}
