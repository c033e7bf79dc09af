// The machine.

import { ask } from "./agent.js";
import { $, attempt, bytes, facts, make, since } from "./dom.js";

export let runtimes = [];

const meter = (label, used, all) => make("p", {}, `${label}: ${bytes(used)} of ${bytes(all)}`,
  make("meter", { "aria-label": label, min: 0, max: all || 1, value: used, high: 0.85 * all, optimum: 0 }));

export async function showNode() {
  const node = await ask("GET", "/node");
  $("node-name").textContent = node.name;
  const battery = node.battery && `${Math.round(node.battery.percent)} %${node.battery.plugged_in ? ", plugged in" : ""}`;
  const hottest = node.temperatures.toSorted((a, b) => b.celsius - a.celsius)[0];
  facts($("node-facts"), [
    ["Machine", `${node.machine}, ${node.cpus} processors`], ["System", node.system], ["Version", node.version],
    ["Load", node.load.map((one) => one.toFixed(2)).join("  ")], ["Battery", battery],
    ["Temperature", hottest && `${hottest.celsius.toFixed(0)} °C (${hottest.sensor})`],
    ["Agent", `since ${since(node.started)}`], ["Takes jobs", node.draining ? "no: it is drained" : "yes"],
  ]);
  $("node-meters").replaceChildren(
    meter("Memory", node.memory_total - node.memory_available, node.memory_total),
    meter("Disk", node.disk_total - node.disk_free, node.disk_total));
  $("counts").textContent = Object.entries(node.jobs).filter(([, count]) => count)
    .map(([state, count]) => `${count} ${state}`).join(", ");
  runtimes = node.runtimes.filter((one) => one.version).map((one) => one.name);
  $("node-runtimes").replaceChildren(
    ...node.runtimes.map((one) => make("li", {}, one.version
      ? `${one.name} ${one.version}${node.warm.includes(one.name) ? ", workers stand by" : ""}`
      : `${one.name}: ${one.problem}`)),
    ...Object.entries(node.sandbox).map(([name, answer]) => make("li", {}, `${name}: ${answer}`)));
  $("runtimes").replaceChildren(...runtimes.map((name) => make("option", { value: name })));
  const peers = node.peers ?? [];
  $("peers").replaceChildren(...peers.map((url) => make("option", { value: url })));
  $("node-peers").replaceChildren(...(peers.length ? ["Other nodes: ", ...peers.flatMap((url, n) => [n ? ", " : "",
    make("a", { href: url, rel: "noopener noreferrer" }, url)])] : []));
  $("drain").disabled = node.draining;
  $("undrain").disabled = !node.draining;
}

export function nodeButtons(changed) {
  for (const what of ["drain", "undrain"]) {
    $(what).addEventListener("click", async () => {
      if (what === "drain" && !confirm("Take no more jobs, and put away or move all that run?")) return;
      await attempt($(what), what, () => ask("POST", `/node/${what}`));
      changed();
    });
  }
}
