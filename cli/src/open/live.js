// Follows a session or a file: every few seconds, asks the server for the number of its page, and reloads if that is another
// one. The page restores its view from its address. This script keeps the scroll position and the focus.
(() => {
  const bar = document.createElement("div");
  bar.id = "live";
  bar.style.cssText = "position:fixed;right:8px;bottom:8px;padding:4px 8px;border:1px solid GrayText;border-radius:4px;" +
    "background:Canvas;color:CanvasText;font:12px system-ui,sans-serif;z-index:9";
  const text = document.createElement("span");
  text.setAttribute("role", "status");
  const button = document.createElement("button");
  button.type = "button";
  button.style.marginLeft = "8px";
  bar.append(text, button);
  document.body.append(bar);
  const stored = name => { try { return sessionStorage.getItem(name); } catch { return null; } };
  const store = (name, value) => { try { sessionStorage.setItem(name, value); } catch { /* It forgets its place. */ } };

  let paused = stored("ccsd-paused") === "1";
  let held = false;
  const say = () => {
    text.textContent = paused ? "paused" : LIVE.says;
    button.textContent = paused ? "go on" : "pause";
  };
  button.onclick = () => { paused = !paused; store("ccsd-paused", paused ? "1" : "0"); say(); };
  say();

  const place = JSON.parse(stored("ccsd-place") || "null");
  if (place) {
    scrollTo(place.x, place.y);
    const focus = place.focus && document.getElementById(place.focus);
    if (focus) focus.focus({ preventScroll: true });
  }
  addEventListener("pointerdown", () => { held = true; });
  addEventListener("pointerup", () => { held = false; });
  addEventListener("pointercancel", () => { held = false; });
  // A pointer that is released outside of the window sends no event.
  addEventListener("blur", () => { held = false; });
  addEventListener("pointermove", event => { held = event.buttons !== 0; });
  // A reload would lose what the user is typing or selecting.
  const isBusy = () => held || document.hidden || ["INPUT", "SELECT", "TEXTAREA"].includes(document.activeElement?.tagName)
    || String(getSelection()) !== "";

  const timer = setInterval(async () => {
    if (paused || isBusy()) return;
    try {
      const answer = await fetch("live", { cache: "no-store" });
      if (!answer.ok) throw new Error();
      if (Number(await answer.text()) === LIVE.version) return;
    } catch {
      clearInterval(timer);
      text.textContent = "ccsd has ended: this is the last state";
      button.hidden = true;
      return;
    }
    store("ccsd-place", JSON.stringify({ x: scrollX, y: scrollY, focus: document.activeElement?.id || "" }));
    location.reload();
  }, LIVE.every);
})();
