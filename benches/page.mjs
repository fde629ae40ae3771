// How soon a page can be used, and how soon it shows another view.
//
//     node benches/page.mjs PAGE...
//
// The browser is Chromium without a display, 1400 by 900 pixels. A page can be used when its scripts have run: it has been drawn
// then, and answers. Median (least to most) of nine loads each; the CPU time is that of the page's main thread until then.
import { spawn } from "node:child_process";
import { mkdtempSync, rmSync, statSync } from "node:fs";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";

const directory = mkdtempSync(join(tmpdir(), "ccsd-page-"));
const flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-pipe", `--user-data-dir=${directory}`];
const browser = spawn("chromium", flags, { stdio: ["ignore", "ignore", "ignore", "pipe", "pipe"] });
const waiting = new Map();
let last = 0, text = "";
browser.stdio[4].on("data", part => {
  text += part;
  const messages = text.split("\0");
  text = messages.pop();
  for (const { id, result, error } of messages.map(it => JSON.parse(it))) {
    if (error) throw new Error(error.message);
    waiting.get(id)?.(result);
  }
});
const send = (method, params = {}, sessionId) => new Promise(done => {
  waiting.set(++last, done);
  browser.stdio[3].write(JSON.stringify({ id: last, method, params, sessionId }) + "\0");
});
const { targetId } = await send("Target.createTarget", { url: "about:blank" });
const { sessionId } = await send("Target.attachToTarget", { targetId, flatten: true });
const tell = (method, params) => send(method, params, sessionId);
const evaluate = async expression => (await tell("Runtime.evaluate", { expression, awaitPromise: true, returnByValue: true })).result.value;
await tell("Page.enable");
await tell("Performance.enable", { timeDomain: "threadTicks" });
const spent = async () => (await tell("Performance.getMetrics")).metrics.find(it => it.name === "TaskDuration").value * 1000;
await tell("Emulation.setDeviceMetricsOverride", { width: 1400, height: 900, deviceScaleFactor: 1, mobile: false });
const spread = times => { times.sort((a, b) => a - b); return `${times[4]} (${times[0]} to ${times[8]}) ms`; };
for (const page of process.argv.slice(2)) {
  const usable = [], cpu = [], functions = [];
  for (let round = 0; round < 9; round++) {
    await tell("Page.navigate", { url: "about:blank" });
    const before = await spent();
    await tell("Page.navigate", { url: "file://" + resolve(page) });
    while (!(await evaluate("document.documentElement?.dataset.ready && performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd > 0"))) {
      await new Promise(done => setTimeout(done, 20));
    }
    usable.push(await evaluate("Math.round(performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd)"));
    cpu.push(Math.round((await spent()) - before));
    functions.push(await evaluate(`new Promise(done => {
      const begun = performance.now();
      document.querySelector("#tabs [data-view=table]").click();
      requestAnimationFrame(() => done(Math.round(performance.now() - begun)));
    })`));
  }
  console.log(`${page}: ${(statSync(page).size / 1e6).toFixed(2)} MB, usable after ${spread(usable)} and ${spread(cpu)} of CPU, functions after ${spread(functions)}`);
}
const ended = new Promise(done => browser.on("exit", done));
send("Browser.close");
await ended;
rmSync(directory, { recursive: true, force: true, maxRetries: 5 });
process.exit(0);
