"use strict";

// All data of the server becomes text nodes. The Content-Security-Policy also refuses inline scripts and HTML from strings.
const element = id => document.getElementById(id);
const maxShown = 200_000; // characters of output on the page
const maxParts = 2000; // changes between standard output and standard error on the page
const maxLine = 64 << 20; // characters of one event
let key = ""; // never stored
let outputLimit; // of the run's result: the page shows the events
let running = null; // the AbortController of the run

function request(path, options = {}) {
  const headers = { ...options.headers };
  if (key) headers.Authorization = "Bearer " + key;
  return fetch(path, { ...options, headers, credentials: "omit", redirect: "error" });
}

const describe = problem => [problem.detail || problem.title, problem.hint && "Next step: " + problem.hint].filter(Boolean).join(". ");

// get returns the document at a path, and throws the text of a problem.
async function get(path) {
  const answer = await request(path);
  const document = await answer.json();
  if (!answer.ok) throw new Error(describe(document));
  return document;
}

function fillTable(id, rows) {
  element(id).tBodies[0].replaceChildren(...rows.map(cells => {
    const row = document.createElement("tr");
    for (const text of cells) row.insertCell().textContent = text || "";
    return row;
  }));
}

async function load() {
  const health = await (await request("v1/health")).json(); // 503 has a document, too
  const known = "running" in health; // only clients that may use the server see it
  element("key-form").hidden = known && !key;
  element("main").hidden = !known;
  if (!known) {
    element("state").textContent = key ? "The server does not accept this key." : "This server needs an API key.";
    element("key").focus();
    return;
  }
  element("state").textContent = [health.version && "Version " + health.version, health.ready ? "ready" : health.reason, health.running + " running",
    health.queued + " waiting"].filter(Boolean).join(" · ");
  const [{ languages }, { limits }] = await Promise.all([get("v1/languages"), get("v1/limits")]);
  fillTable("languages", languages.map(l => [l.title, l.name, l.version, [l.state, l.reason].filter(Boolean).join(": ")]));
  const chosen = element("language").value;
  element("language").replaceChildren(...languages.map(l => {
    const option = new Option(l.title + (l.state === "ready" ? "" : " (" + l.state + ")"), l.name, false, l.name === chosen);
    option.disabled = l.state !== "ready";
    return option;
  }));
  fillTable("limits", limits.map(l => [l.name, l.default || "none", l.ceiling || "none", l.description]));
  outputLimit = undefined;
  for (const l of limits) {
    if (l.name === "timeout" || l.name === "memory") element(l.name).placeholder = l.default;
    if (l.name === "output_limit" && l.default !== l.ceiling) outputLimit = "64KiB"; // else the operator allows no more than the default
  }
}

const attempt = work => work().catch(error => { element("state").textContent = "The request failed: " + error.message; });

// Output is a window over what the program has printed: the oldest part leaves it first.
const output = {
  box: element("output"), parts: [], shown: 0, hidden: 0, looked: false,

  clear() {
    this.box.replaceChildren();
    Object.assign(this, { parts: [], shown: 0, hidden: 0 });
    element("hidden").textContent = "";
  },

  add(kind, text) {
    this.keepEndInView();
    if (text.length > maxShown) {
      this.hidden += text.length - maxShown;
      text = text.slice(-maxShown);
    }
    // Control characters have no glyph; their pictures do.
    text = text.replace(/\r\n/g, "\n").replace(/[\0-\x08\x0b-\x1f]/g, c => String.fromCharCode(0x2400 + c.charCodeAt(0)));
    this.shown += text.length;
    let part = this.parts.at(-1);
    if (part && part.className === kind && part.firstChild.length + text.length < 4096) {
      part.firstChild.appendData(text);
    } else {
      part = document.createElement("span");
      part.className = kind;
      part.textContent = text;
      this.box.append(part);
      this.parts.push(part);
    }
    while (this.shown > maxShown || this.parts.length > maxParts) {
      const first = this.parts.shift();
      this.shown -= first.firstChild.length;
      this.hidden += first.firstChild.length;
      first.remove();
    }
    if (this.hidden) element("hidden").textContent = this.hidden.toLocaleString("en") + " earlier characters are not shown.";
  },

  // keepEndInView is called before text is added. It looks at the layout once per frame, because that is slow.
  keepEndInView() {
    if (this.looked) return;
    const b = this.box, inView = b.scrollTop + b.clientHeight >= b.scrollHeight - 30;
    this.looked = true;
    requestAnimationFrame(() => {
      this.looked = false;
      if (inView) b.scrollTop = b.scrollHeight;
    });
  },
};

// readEvents calls handle with the events of each portion that arrives.
async function readEvents(body, handle) {
  const reader = body.getReader(), decoder = new TextDecoder();
  let rest = "", last = performance.now();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = decoder.decode(value, { stream: true }).split("\n");
    lines[0] = rest + lines[0];
    rest = lines.pop();
    if (rest.length > maxLine) throw new Error("an event is too long for this page");
    handle(lines.filter(Boolean).map(line => JSON.parse(line)));
    if (performance.now() - last > 30) { // let the browser draw and react to Stop
      await new Promise(done => setTimeout(done));
      last = performance.now();
    }
  }
}

function showResult(r) {
  const facts = [r.verdict, "exit code " + r.exit_code, r.execution_time.toFixed(3) + " s", (r.memory_used / 2 ** 20).toFixed(1) + " MiB",
    r.isolation.backend + ", " + r.isolation.tier];
  if (r.signal) facts.splice(2, 0, r.signal);
  element("outcome").textContent = facts.join(" · ");
  const remarks = [...(r.violations || []).filter(v => v.kind !== "output_limit").map(v => v.kind + ": " + v.detail), ...(r.notes || []),
    ...(r.isolation.missing || []).map(m => m.control + " is " + m.state + ": " + m.reason)];
  for (const text of remarks.slice(0, 50)) element("remarks").appendChild(document.createElement("li")).textContent = text;
}

async function run() {
  const body = { language: element("language").value, code: element("code").value, output_limit: outputLimit };
  for (const name of ["stdin", "timeout", "memory"]) body[name] = element(name).value || undefined;
  const answer = await request("v1/run", {
    method: "POST", headers: { "Content-Type": "application/json", Accept: "application/x-ndjson" }, body: JSON.stringify(body),
    signal: running.signal,
  });
  if (!answer.ok) {
    if (answer.status === 401) await load();
    throw new Error(describe(await answer.json()));
  }
  const decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() }, encoder = new TextEncoder();
  let ended = false;
  await readEvents(answer.body, events => {
    let kind = "", text = "";
    const flush = next => {
      if (text) output.add(kind, text);
      kind = next;
      text = "";
    };
    for (const e of events) {
      if (e.kind === "stdout" || e.kind === "stderr") {
        if (e.kind !== kind) flush(e.kind);
        const bytes = e.encoding === "base64" ? Uint8Array.from(atob(e.data), c => c.charCodeAt(0)) : encoder.encode(e.data);
        text += decoders[e.kind].decode(bytes, { stream: true });
      } else if (e.kind === "result") {
        ended = true;
        showResult(e.result);
      } else if (e.kind === "error") {
        throw new Error(describe(e.problem));
      } else if (e.kind === "phase") {
        element("outcome").textContent = "Phase " + e.phase + " …";
      }
    }
    flush("");
  });
  if (!ended) throw new Error("the connection ended before the result");
}

element("run-form").addEventListener("submit", async event => {
  event.preventDefault();
  if (running) return;
  running = new AbortController();
  output.clear();
  element("remarks").replaceChildren();
  element("outcome").textContent = "Waiting …";
  element("stop").disabled = false;
  try {
    await run();
  } catch (error) {
    element("outcome").textContent = running.signal.aborted ? "Stopped." : "Failed: " + error.message;
    running.abort(); // ends the program of an answer that the page does not understand
  }
  running = null;
  if (document.activeElement === element("stop")) element("run").focus();
  element("stop").disabled = true;
});
element("stop").addEventListener("click", () => running && running.abort());
element("code").addEventListener("keydown", event => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) element("run-form").requestSubmit();
});
element("key-form").addEventListener("submit", event => {
  event.preventDefault();
  key = element("key").value.trim().replace(/[^!-~]/g, "?"); // a header has no other characters, and neither has a key
  attempt(load);
});
attempt(load);
