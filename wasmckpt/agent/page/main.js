// Signs in, shows everything, and shows again what an event says has changed.

import { follow, token } from "./agent.js";
import { $, say } from "./dom.js";
import { closeJob, jobButtons, noteEvent, openJob, showJob } from "./job.js";
import { choose, showJobs } from "./jobs.js";
import { nodeButtons, showNode } from "./node.js";

let live = new AbortController();
let asked = null;

const open = (id) => {
  choose(id, open);
  showJob(id, { focus: true }).catch(failed);
};

function failed(problem) {
  if (problem.status === 401) leave("That token is not known here, or it has expired.");
  else say(problem.message, true);
}

// However many events come, everything is asked for again once in so many milliseconds.
function changed() {
  if (asked !== null) return;
  asked = setTimeout(async () => {
    asked = null;
    if (!token.get()) return;
    try {
      await Promise.all([showNode(), showJobs(open)]);
      if (openJob()) await showJob(openJob());
    } catch (problem) {
      if (problem.status === 404) closeJob();
      else failed(problem);
    }
  }, 250);
}

async function enter() {
  try {
    await Promise.all([showNode(), showJobs(open)]);
  } catch (problem) {
    if (problem.status === 401) return leave("That token is not known here.");
    if (problem.status === 403) return leave(problem.message);
    say(problem.message, true);
  }
  $("door").hidden = true;
  $("house").hidden = $("leave").hidden = false;
  live = new AbortController();
  follow((last) => `/events?follow=true&after=${last ?? -1}`, live.signal, ({ data }) => { noteEvent(data); changed(); });
}

function leave(why = "") {
  token.forget();
  live.abort();
  closeJob();
  $("door").hidden = false;
  $("house").hidden = $("leave").hidden = true;
  $("node-name").textContent = "";
  say(why, Boolean(why));
  $("token").focus();
}

$("sign-in").addEventListener("submit", (event) => {
  event.preventDefault();
  token.set($("token").value.trim());
  $("token").value = "";
  say("");
  enter();
});
$("leave").addEventListener("click", () => leave());
$("states").addEventListener("change", () => showJobs(open).catch(failed));
$("more").addEventListener("click", () => showJobs(open, { more: true }).catch(failed));
nodeButtons(changed);
jobButtons(changed);
setInterval(() => { if (!document.hidden && token.get()) changed(); }, 5000);
if (token.get()) enter();
