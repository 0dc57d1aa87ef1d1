// Looks again each second while the page is visible, and replaces what has changed.
// Without it the pages are the same, but stand still until they are loaded again.
"use strict";

const SECONDS = 1;
const LONGEST_SECONDS = 15;

let tag = null;
let failures = 0;

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

// What a viewer has opened, scrolled or focused stays as it was.
function replace(now, next) {
  const opened = new Map();
  for (const each of now.querySelectorAll("details[id]")) opened.set(each.id, each.open);
  const scrolled = [...now.querySelectorAll(".wide")].map((each) => each.scrollLeft);
  const active = document.activeElement;
  const focus = active && now.contains(active) ? place(now, active) : null;
  now.replaceChildren(...next.childNodes);
  for (const each of now.querySelectorAll("details[id]")) {
    if (opened.has(each.id)) each.open = opened.get(each.id);
  }
  [...now.querySelectorAll(".wide")].forEach((each, at) => { each.scrollLeft = scrolled[at] || 0; });
  if (focus !== null) {
    const found = now.querySelectorAll(focus.selector)[focus.at];
    if (found) found.focus({ preventScroll: true });
  }
  localTimes(now);
}

function place(root, element) {
  if (element.id) return { selector: "#" + CSS.escape(element.id), at: 0 };
  const selector = element.tagName.toLowerCase();
  return { selector, at: [...root.querySelectorAll(selector)].indexOf(element) };
}

function isBusy(main) {
  const active = document.activeElement;
  const selection = document.getSelection();
  return (active && main.contains(active) && active.matches("input, textarea, select"))
    || isEdited(main)
    || (selection && !selection.isCollapsed && main.contains(selection.anchorNode));
}

// Whether a field has something else than the server has written there.
function isEdited(main) {
  return [...main.querySelectorAll("input, textarea")].some((each) => each.value !== each.defaultValue)
    || [...main.querySelectorAll("option")].some((each) => each.selected !== each.defaultSelected);
}

async function look() {
  const main = document.querySelector("main[data-live]");
  if (main === null) return;
  if (document.hidden || isBusy(main)) return;
  const headers = tag === null ? {} : { "If-None-Match": tag };
  try {
    const answer = await fetch(window.location.href, { headers, cache: "no-store" });
    if (answer.status !== 304) {
      const next = new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main");
      if (next !== null) {
        replace(main, next);
        tag = answer.headers.get("ETag");
      }
    }
    failures = answer.ok || answer.status === 304 ? 0 : failures + 1;
    show(failures ? "The last look has failed." : "");
  } catch (error) {
    failures += 1;
    show("The page's server does not answer; trying again.");
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
