// Puts what the server sends in the place of what stands there. The server renders; nothing is
// made up here, so the page without this script says the same, only not by itself.
(() => {
  "use strict";

  const main = document.querySelector("main[data-live]");
  const connection = document.getElementById("connection");
  const announcement = document.getElementById("announcement");
  if (!main) return;

  function parse(html) {
    const template = document.createElement("template");
    template.innerHTML = html;
    return template.content.firstElementChild;
  }

  // What the reader has opened stays open, and what has the focus keeps it.
  function swap(html) {
    const fresh = parse(html);
    const old = fresh && document.getElementById(fresh.id);
    if (!old) return;
    for (const opened of old.querySelectorAll("details[id][open]")) {
      const twin = fresh.querySelector("#" + CSS.escape(opened.id));
      if (twin) twin.open = true;
    }
    const active = document.activeElement;
    const focused = old.contains(active) ? active.id : "";
    const said = fresh.dataset.say;
    if (said && said !== old.dataset.say) announcement.textContent = said;
    old.replaceWith(fresh);
    if (focused) document.getElementById(focused)?.focus({ preventScroll: true });
  }

  function tell(text) {
    connection.textContent = text;
    connection.hidden = !text;
  }

  let lost = "";
  const source = new EventSource(main.dataset.live);
  source.addEventListener("open", () => {
    lost = "";
    tell("");
  });
  source.addEventListener("part", (event) => swap(event.data));
  source.addEventListener("end", () => source.close());
  source.addEventListener("expired", () => {
    source.close();
    tell("Your session has ended: reload the page to log in again.");
  });
  source.addEventListener("error", () => {
    lost = lost || new Date().toISOString().slice(11, 19) + " UTC";
    tell(
      source.readyState === EventSource.CLOSED
        ? "The dashboard has ended the connection: reload the page."
        : "The dashboard cannot be reached since " + lost + "; what you see is older. Trying again.",
    );
  });
})();
