// A move between agents as it happens, from the events of the kind `migration`: how many pages each round sent, and how
// long the program would stand still if it were stopped then.

import { ask, job } from "./agent.js";
import { $, attempt, make } from "./dom.js";

let moves = new Map();

export function forgetMoves() {
  moves = new Map();
  draw();
}

// `data`: `migration` (its id), `step`, and of a `round` its number, `pages`, `seconds`, `expected` (seconds).
export function noteMove(event) {
  const { migration, step, ...rest } = event.data;
  const move = moves.get(migration) ?? { rounds: [], to: "", runtime: "", step: "", text: "" };
  if (step === "begins") Object.assign(move, { to: rest.to ?? "", runtime: rest.runtime ?? "" });
  if (step === "round" && !move.rounds.some((one) => one.round === rest.round)) move.rounds.push(rest);
  Object.assign(move, { job: event.job, step, text: event.text, downtime: rest.downtime ?? rest.stopped ?? move.downtime });
  moves.set(migration, move);
  draw();
}

const over = (move) => ["moved", "kept"].includes(move.step);

function plot(move) {
  const [width, height, left, bottom] = [640, 200, 56, 24];
  const rounds = move.rounds;
  const most = Math.max(1, ...rounds.map((one) => one.pages ?? 0));
  const longest = Math.max(0.001, ...rounds.map((one) => one.expected ?? 0));
  const step = (width - 2 * left) / Math.max(rounds.length, 1);
  const x = (n) => left + step * (n + 0.5);
  const y = (part) => height - bottom - part * (height - bottom - 16);
  const line = rounds.map((one, n) => `${n ? "L" : "M"}${x(n)} ${y((one.expected ?? 0) / longest)}`).join("");
  return make("svg", { class: "plot", viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label":
    `${rounds.length} rounds; the last one sent ${rounds.at(-1)?.pages ?? 0} pages, a stop after it would take `
    + `${Math.round(1000 * (rounds.at(-1)?.expected ?? 0))} ms` },
    make("line", { class: "axis", x1: left, y1: y(0), x2: width - left, y2: y(0) }),
    ...rounds.map((one, n) => make("rect", { class: "bar", x: x(n) - step * 0.35, width: step * 0.7,
      y: y((one.pages ?? 0) / most), height: y(0) - y((one.pages ?? 0) / most) },
      make("title", {}, `round ${one.round}: ${one.pages} pages, ${Math.round(1000 * (one.seconds ?? 0))} ms`))),
    make("path", { class: "stop", d: line || "M0 0" }),
    ...rounds.map((one, n) => make("circle", { class: "point", cx: x(n), cy: y((one.expected ?? 0) / longest), r: 3 })),
    ...rounds.map((one, n) => make("text", { x: x(n), y: height - 8, "text-anchor": "middle" }, String(one.round ?? n + 1))),
    make("text", { x: 4, y: 12 }, `${most} pages`),
    make("text", { x: width - 4, y: 12, "text-anchor": "end" }, `stop ${Math.round(1000 * longest)} ms`));
}

function draw() {
  const drawn = [...moves].toReversed().map(([id, move]) => make("figure", { "data-move": id },
    make("figcaption", {}, `${move.to ? `to ${move.to} ${move.runtime}: ` : ""}${move.text}`,
      over(move) ? null : make("button", { type: "button", onclick: (event) => attempt(event.target, "calling it off",
        () => ask("POST", `${job(move.job)}/migrations/${encodeURIComponent(id)}/cancel`)) }, "Call it off")),
    move.rounds.length ? plot(move) : null));
  $("moves").replaceChildren(...(drawn.length ? drawn : [make("p", {}, "None yet.")]));
}
