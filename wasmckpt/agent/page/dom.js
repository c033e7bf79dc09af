// Elements, and numbers for people. Texts of others become text nodes and never markup.

export const $ = (id) => document.getElementById(id);

export function make(name, attributes = {}, ...content) {
  const svg = ["svg", "rect", "path", "circle", "line", "text", "title", "g"].includes(name);
  const made = svg ? document.createElementNS("http://www.w3.org/2000/svg", name) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...content.filter((one) => one !== null && one !== undefined));
  return made;
}

export function facts(list, pairs) {
  list.replaceChildren(...pairs.filter(([, value]) => value !== null && value !== undefined && value !== "")
    .flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

export function bytes(number) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let unit = 0;
  while (number >= 1024 && unit < units.length - 1) { number /= 1024; unit += 1; }
  return `${unit && number < 100 ? number.toFixed(1) : Math.round(number)} ${units[unit]}`;
}

export function since(seconds) {
  const passed = Math.max(0, Date.now() / 1000 - seconds);
  for (const [size, unit] of [[86400, "d"], [3600, "h"], [60, "min"]]) {
    if (passed >= size) return `${Math.floor(passed / size)} ${unit}`;
  }
  return `${Math.floor(passed)} s`;
}

export const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString();

export function say(text, bad = false) {
  $("said").textContent = text;
  $("said").classList.toggle("bad", bad);
}

// Does something that may fail, and says why it did; the button cannot be pressed meanwhile.
export async function attempt(button, what, call) {
  if (button) button.disabled = true;
  say(`${what} …`);
  try {
    const found = await call();
    say(`${what}: done`);
    return found;
  } catch (problem) {
    say(`${what}: ${problem.message}`, true);
    return null;
  } finally {
    if (button) button.disabled = false;
  }
}
