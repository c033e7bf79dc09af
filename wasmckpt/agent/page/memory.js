// What an image holds of a program's memories, as a picture: a cell for so many bytes.

import { ask, job } from "./agent.js";
import { $, bytes, make, since } from "./dom.js";

const COLOURS = { ".": [136, 136, 136, 40], "#": [232, 89, 12, 255], "+": [247, 178, 103, 255], 0: [59, 130, 246, 255] };

function draw(memory) {
  const width = memory.cells.length > 1024 ? 64 : memory.cells.length > 128 ? 32 : 16;
  const height = Math.max(1, Math.ceil(memory.cells.length / width));
  const canvas = make("canvas", { width, height, role: "img", "aria-label":
    `Memory ${memory.index}: ${bytes(memory.changed)} of ${bytes(memory.size)} differ from the module` });
  const context = canvas.getContext("2d");
  const picture = context.createImageData(width, height);
  [...memory.cells].forEach((cell, n) => picture.data.set(COLOURS[cell], 4 * n));
  context.putImageData(picture, 0, 0);
  canvas.style.aspectRatio = `${width} / ${height}`;
  return make("figure", {},
    make("figcaption", {}, `memory ${memory.index}: ${bytes(memory.size)}, ${bytes(memory.changed)} changed, `
      + `${bytes(memory.cleared)} made zero; a cell is ${bytes(memory.cell)}`,
      make("span", { class: "key none" }), "as the module made it", make("span", { class: "key all" }), "changed",
      make("span", { class: "key part" }), "in part", make("span", { class: "key zero" }), "made zero"), canvas);
}

let known = "";

// The images of a job, and the picture of one: the one that was chosen, or the newest.
export async function showImages(name, { again = false } = {}) {
  const found = [];
  for (let cursor = ""; cursor !== null;) {
    const page = await ask("GET", `${job(name)}/checkpoints?limit=1000${cursor && `&cursor=${cursor}`}`);
    found.push(...page.items);
    cursor = page.next;
  }
  const now = JSON.stringify([name, found.map((one) => one.number)]);
  if (now === known && !again) return;
  known = now;
  const before = again ? $("image").value : "";
  $("image").replaceChildren(...found.toReversed().map((one) => make("option", { value: one.number }, one.number)));
  if (found.some((one) => String(one.number) === before)) $("image").value = before;
  $("image").disabled = found.length === 0;
  const image = found.find((one) => String(one.number) === $("image").value);
  $("image-facts").textContent = image
    ? `${bytes(image.size)}, ${image.frames} ${image.frames === 1 ? "frame" : "frames"}, on ${image.runtime}, ${since(image.taken)} ago` : "There is none yet.";
  const memories = image ? await ask("GET", `${job(name)}/checkpoints/${image.number}/map`) : [];
  $("memories").replaceChildren(...memories.map(draw));
}
