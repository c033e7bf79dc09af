// What the agent is asked. The token is in a header, never in an address; events come through fetch, since an
// EventSource has no headers.

const KEY = "wasmckpt-token";

export const token = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

// An error of the agent, as it tells it (RFC 9457), or of the way to it.
export class Problem extends Error {
  constructor(status, document) {
    super([document.title || document.detail, document.hint].filter(Boolean).join(": ") || `status ${status}`);
    this.status = status;
  }
}

export async function ask(method, path, body, options = {}) {
  let answer;
  try {
    answer = await fetch(`v1${path}`, {
      method, signal: options.signal, cache: "no-store", credentials: "omit",
      headers: { Authorization: `Bearer ${token.get()}`, ...(body ? { "Content-Type": "application/json" } : {}) },
      body: body ? JSON.stringify(body) : undefined,
    });
  } catch (reason) {
    if (options.signal?.aborted) throw reason;
    throw new Problem(0, { title: "the agent does not answer" });
  }
  if (!answer.ok) {
    let document = {};
    try { document = await answer.json(); } catch { /* not from the agent itself */ }
    throw new Problem(answer.status, document);
  }
  return options.raw ? answer : answer.status === 204 ? null : answer.json();
}

export const job = (name) => `/jobs/${encodeURIComponent(name)}`;

// Server-sent events of `path`, one after the other, until `signal`, or until the agent ends them.
async function* eventsOf(path, last, signal) {
  const answer = await ask("GET", path, undefined, { raw: true, signal });
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const found = { event: "message", data: "" };
      for (const line of text.slice(0, end).split("\n")) {
        const colon = line.indexOf(": ");
        if (colon > 0) found[line.slice(0, colon)] = line.slice(colon + 2);
      }
      text = text.slice(end + 2);
      if (found.data) yield { id: found.id, kind: found.event, data: JSON.parse(found.data) };
    }
  }
}

// The same for as long as `signal` is not given, however often the connection breaks. `path(last)` goes on behind the
// event with that id. `over(event)`: nothing comes after this one.
export async function follow(path, signal, call, over = () => false) {
  let last = null;
  for (let pause = 500; !signal.aborted; pause = Math.min(2 * pause, 10000)) {
    try {
      for await (const event of eventsOf(path(last), last, signal)) {
        if (signal.aborted) return;
        pause = 500;
        last = event.id ?? last;
        call(event);
        if (over(event)) return;
      }
    } catch (problem) {
      if (signal.aborted || problem.status === 401 || problem.status === 404) return;
    }
    await new Promise((done) => setTimeout(done, pause));
  }
}
