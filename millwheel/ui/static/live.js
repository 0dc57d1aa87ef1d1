// Looks again each second while the page is visible, and changes what has changed.
// Without it the pages are the same, but stand still until they are loaded again.
"use strict";

const SECONDS = 1;
const LONGEST_SECONDS = 5;
const ANSWER_SECONDS = 30;

let tag = null;
let failures = 0;
let isLooking = false;
let lookedAt = new Date(); // null: the page shows why it cannot look

function show(text) {
  const looked = document.getElementById("looked");
  if (looked && looked.textContent !== text) looked.textContent = text;
}

// Times are written in UTC; here the viewer's own follows.
function localTimes(root) {
  for (const each of root.querySelectorAll("time[datetime]")) {
    const at = new Date(each.dateTime);
    if (!Number.isNaN(at.valueOf())) each.title = at.toLocaleString(undefined, { timeZoneName: "short" });
  }
}

// Elements that stay are changed where they are, so that focus, opened details, scrolled parts and
// fields that somebody fills in stay as they were.
function change(now, next) {
  if (now.isEqualNode(next)) return;
  if (now.nodeType !== Node.ELEMENT_NODE) {
    now.nodeValue = next.nodeValue;
    return;
  }
  const isViewers = (name) => name === "open" && now.tagName === "DETAILS";
  for (const { name } of [...now.attributes]) {
    if (!next.hasAttribute(name) && !isViewers(name)) now.removeAttribute(name);
  }
  for (const { name, value } of next.attributes) {
    if (now.getAttribute(name) !== value && !isViewers(name)) now.setAttribute(name, value);
  }
  changeContent(now, next);
}

function changeContent(now, next) {
  const names = namesOf(now);
  const wanted = namesOf(next);
  const known = new Map([...names].map(([element, name]) => [name, element]));
  const stays = new Set(wanted.values());
  let at = now.firstChild;
  function skip(isGone) {
    while (at !== null && isGone(at)) {
      const gone = at;
      at = at.nextSibling;
      gone.remove();
    }
  }
  for (const each of [...next.childNodes]) {
    const name = wanted.get(each);
    skip((one) => names.has(one) && !stays.has(names.get(one)));
    const found = known.get(name);
    if (name !== undefined && found !== undefined && found.nodeName === each.nodeName) {
      skip((one) => one !== found && !stays.has(names.get(one)));
      if (found === at) at = at.nextSibling;
      else if (now.moveBefore) now.moveBefore(found, at);
      else now.insertBefore(found, at);
      change(found, each);
    } else if (name === undefined && at !== null && !names.has(at) && at.nodeName === each.nodeName) {
      const same = at;
      at = at.nextSibling;
      change(same, each);
    } else {
      now.insertBefore(each, at);
    }
  }
  skip(() => true);
}

// Children that are the same thing in the next look, whatever place they have then: by their id, the
// head of their row, or their label. Equal names are counted.
function namesOf(parent) {
  const found = new Map();
  const times = new Map();
  for (const each of parent.children) {
    const head = each.tagName === "TR" ? each.querySelector("th[scope=row]") : null;
    const name = each.id || (head && head.textContent.trim()) || each.getAttribute("aria-label");
    if (!name) continue;
    times.set(name, (times.get(name) || 0) + 1);
    found.set(each, each.tagName + " " + name + " " + times.get(name));
  }
  return found;
}

// A text that is being selected, to be copied, must not change.
function isSelecting(main) {
  const selection = document.getSelection();
  return selection && !selection.isCollapsed && main.contains(selection.anchorNode);
}

function failed(text) {
  failures += 1;
  const age = lookedAt === null ? "" : " What you see is of " + lookedAt.toLocaleTimeString() + ".";
  show(text + age + " Trying again.");
}

async function ask(main) {
  const headers = tag === null ? {} : { "If-None-Match": tag };
  const signal = AbortSignal.timeout(ANSWER_SECONDS * 1000);
  const answer = await fetch(window.location.href, { headers, cache: "no-store", signal });
  if (answer.status === 304) {
    lookedAt = new Date();
    return true;
  }
  const text = await answer.text();
  const page = new DOMParser().parseFromString(text, "text/html");
  const next = page.querySelector("main");
  if (next === null || isSelecting(main)) return next !== null && answer.ok;
  localTimes(next);
  changeContent(main, next);
  document.title = page.title;
  lookedAt = answer.ok ? new Date() : null;
  tag = answer.headers.get("ETag");
  return answer.ok;
}

async function look() {
  const main = document.querySelector("main[data-live]");
  if (main === null || document.hidden || isLooking) return;
  if (isSelecting(main)) {
    show("Nothing changes here while you select text.");
    return;
  }
  isLooking = true;
  try {
    if (await ask(main)) {
      failures = 0;
      show("");
    } else {
      failed("The last look has failed.");
    }
  } catch (error) {
    failed("The page's server does not answer.");
  } finally {
    isLooking = false;
  }
}

async function live() {
  await look();
  const seconds = Math.min(SECONDS * 2 ** failures, LONGEST_SECONDS);
  window.setTimeout(live, seconds * 1000);
}

document.addEventListener("visibilitychange", look);
localTimes(document);
window.setTimeout(live, SECONDS * 1000);
